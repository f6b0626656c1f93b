"""Routes: what a request is answered, and what it leaves behind."""
