"""Servers that share a database: which of them answers what, and who leads next."""
