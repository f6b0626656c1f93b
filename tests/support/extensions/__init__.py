"""Copies of the three packages without extensions, and what runs in them."""
