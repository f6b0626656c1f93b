"""Exact tokens of every completion. Nobody else opens the file."""
