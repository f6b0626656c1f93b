"""The worker side of the trainer server, and the only place that imports torch."""
