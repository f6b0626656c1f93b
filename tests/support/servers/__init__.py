"""Servers of tests: ours on small engines and on vLLM, `langgraph dev`, PostgreSQL, and what others answer."""
