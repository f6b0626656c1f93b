"""LangGraph projects: what `langgraph.json` says, its graphs, what training needs beside it."""
