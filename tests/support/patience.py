"""How long tests wait for what should happen at once."""

PATIENCE = 120.0
"""Seconds. No test that passes waits that long: the bound only ends one that would hang, on the slowest of machines."""
