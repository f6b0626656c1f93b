"""The quickstart's agent here, and the trainer server elsewhere."""
