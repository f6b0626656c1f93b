"""Connections with MCP servers: sessions, tools, capture of every call, recorded servers."""
