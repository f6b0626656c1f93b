"""Recorded runs on their way out: with their tokens to another server, and as files that other trainers read."""
