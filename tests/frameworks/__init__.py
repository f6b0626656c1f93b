"""Agents of other frameworks, as their documentation writes them, on the real gateway."""
