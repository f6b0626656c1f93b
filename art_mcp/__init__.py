"""MCP servers as tools of a trained agent: sessions, LangChain tools, capture of every call. Never imports torch."""

from art_mcp.capture import CaptureInterceptor, capture
from art_mcp.cassette import Cassette
from art_mcp.catalog import Catalog, read_catalog
from art_mcp.connect import Server, connect
from art_mcp.result import CallResult
from art_mcp.scenarios import MCPScenario, ScenarioSet
from trainer_server.wire import MCPError

__all__ = [
    "CallResult",
    "CaptureInterceptor",
    "Cassette",
    "Catalog",
    "MCPError",
    "MCPScenario",
    "ScenarioSet",
    "Server",
    "capture",
    "connect",
    "read_catalog",
]
