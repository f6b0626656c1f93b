"""Worlds: what a server works on. Every run gets a copy of its own, and is judged by what it changed there."""
