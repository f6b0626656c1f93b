"""Servers of tests: ours on small engines and on vLLM, `langgraph dev`, PostgreSQL, a hub of models, a judge."""
