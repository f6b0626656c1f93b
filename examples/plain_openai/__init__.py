"""An agent that is written with OpenAI's client alone: no LangGraph, no LangChain, only another base URL."""
