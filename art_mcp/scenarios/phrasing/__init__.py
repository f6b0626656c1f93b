"""A grammar of tasks: what a person would say to get a call made, and what is answered. It knows no server."""
