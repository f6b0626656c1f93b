"""What fits on which hardware: `art-langgraph plan`."""
