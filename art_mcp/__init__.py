"""MCP servers as tools of a trained agent: sessions, LangChain tools, capture of every call. Never imports torch."""

from art_mcp.client.capture import CaptureInterceptor, capture
from art_mcp.client.cassette import Cassette
from art_mcp.client.connect import Server, connect
from art_mcp.client.result import CallResult
from art_mcp.scenarios.catalog import Catalog, read_catalog
from art_mcp.scenarios.generate import generate_scenarios
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.scenarios.tables import load_tables
from art_mcp.specialization.demonstrations import demonstration, demonstrations
from art_mcp.specialization.measure import measure_difficulty
from art_mcp.specialization.specialize import Specialization, specialize
from art_mcp.specialization.verify import verify
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
