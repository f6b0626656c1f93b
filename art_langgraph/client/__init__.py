"""The trainer server's control API, as a client sees it."""
