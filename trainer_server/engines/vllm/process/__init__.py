"""A vLLM that is started here: its sockets, how long it may be silent, why it ended."""
