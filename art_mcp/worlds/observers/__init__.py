"""Observers: what is in a file or directory of a world, as names with values. A repository, a database, any file."""
