"""How good a version is on the held-out sets: measured within a time, compared on the same scenarios."""
