"""Copies of a world, each with a server that runs in it."""
