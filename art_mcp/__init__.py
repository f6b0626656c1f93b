"""MCP servers as tools of a trained agent: sessions, LangChain tools, capture of every call. Never imports torch."""

from art_mcp.capture import CaptureInterceptor, capture
from art_mcp.cassette import Cassette
from art_mcp.connect import Server, connect
from art_mcp.result import CallResult
from trainer_server.wire import MCPError

__all__ = ["CallResult", "CaptureInterceptor", "Cassette", "MCPError", "Server", "capture", "connect"]
