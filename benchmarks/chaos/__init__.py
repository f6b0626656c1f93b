"""What may happen to a running server, and whether everything comes back and the books balance."""
