"""`art-langgraph doctor`: says beforehand whether a model will serve, parse and train on this machine."""
