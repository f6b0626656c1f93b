"""vLLM as an engine: its environment, its command line, its HTTP dialect, its plugins."""
