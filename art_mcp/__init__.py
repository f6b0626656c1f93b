"""MCP servers as tools of a trained agent: sessions, LangChain tools, capture of every call. Never imports torch."""

from art_mcp.connect import Server, connect
from trainer_server.wire import MCPError

__all__ = ["MCPError", "Server", "connect"]
