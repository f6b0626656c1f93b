"""MCP servers as tools of a trained agent: sessions, LangChain tools, capture of every call. Never imports torch."""

from art_mcp.capture import CaptureInterceptor, capture
from art_mcp.cassette import Cassette
from art_mcp.catalog import Catalog, read_catalog
from art_mcp.connect import Server, connect
from art_mcp.demonstrations import demonstration, demonstrations
from art_mcp.measure import measure_difficulty
from art_mcp.plan import MCPScenario, ScenarioSet
from art_mcp.result import CallResult
from art_mcp.scenarios import generate_scenarios
from art_mcp.specialize import Specialization, specialize
from art_mcp.values import load_tables
from art_mcp.verify import verify
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
    "Specialization",
    "capture",
    "connect",
    "demonstration",
    "demonstrations",
    "generate_scenarios",
    "load_tables",
    "measure_difficulty",
    "read_catalog",
    "specialize",
    "verify",
]
