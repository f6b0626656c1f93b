"""MCP servers as tools of a trained agent: sessions, LangChain tools, capture of every call. Never imports torch.

Public names are imported when they are first used (PEP 562): `art-langgraph --help` loads no LangChain and no MCP SDK.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art_mcp.client.capture import CaptureInterceptor, capture
    from art_mcp.client.cassette import Cassette
    from art_mcp.client.connect import Server, connect
    from art_mcp.client.result import CallResult
    from art_mcp.scenarios.catalog import Catalog, read_catalog
    from art_mcp.scenarios.drafting.tables import load_tables
    from art_mcp.scenarios.generate import generate_scenarios
    from art_mcp.scenarios.plan import MCPScenario
    from art_mcp.scenarios.scenario_set import ScenarioSet
    from art_mcp.specialization.agent import build_agent
    from art_mcp.specialization.demonstrations import demonstration, demonstrations
    from art_mcp.specialization.measurement import Measurement, PairedGain
    from art_mcp.specialization.settings import GenerationSettings, RunSettings, TrainingSettings, WarmStart
    from art_mcp.specialization.specialization import Specialization
    from art_mcp.specialization.specialize import specialize
    from art_mcp.specialization.stages.measurement import measure_difficulty
    from art_mcp.specialization.verify import verify
    from art_mcp.worlds.change import Change
    from art_mcp.worlds.observers.observer import Observer
    from art_mcp.worlds.world import World
    from trainer_server.wire import MCPError

_MODULES = {
    "art_mcp.client.capture": ("CaptureInterceptor", "capture"),
    "art_mcp.client.cassette": ("Cassette",),
    "art_mcp.client.connect": ("Server", "connect"),
    "art_mcp.client.result": ("CallResult",),
    "art_mcp.scenarios.catalog": ("Catalog", "read_catalog"),
    "art_mcp.scenarios.generate": ("generate_scenarios",),
    "art_mcp.scenarios.plan": ("MCPScenario",),
    "art_mcp.scenarios.scenario_set": ("ScenarioSet",),
    "art_mcp.scenarios.drafting.tables": ("load_tables",),
    "art_mcp.specialization.agent": ("build_agent",),
    "art_mcp.specialization.demonstrations": ("demonstration", "demonstrations"),
    "art_mcp.specialization.measurement": ("Measurement", "PairedGain"),
    "art_mcp.specialization.settings": ("GenerationSettings", "RunSettings", "TrainingSettings", "WarmStart"),
    "art_mcp.specialization.specialization": ("Specialization",),
    "art_mcp.specialization.specialize": ("specialize",),
    "art_mcp.specialization.stages.measurement": ("measure_difficulty",),
    "art_mcp.specialization.verify": ("verify",),
    "art_mcp.worlds.change": ("Change",),
    "art_mcp.worlds.observers.observer": ("Observer",),
    "art_mcp.worlds.world": ("World",),
    "trainer_server.wire": ("MCPError",),
}
"""Where each public name is defined: the imports above, for the interpreter."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "CallResult",
    "CaptureInterceptor",
    "Cassette",
    "Catalog",
    "Change",
    "GenerationSettings",
    "MCPError",
    "MCPScenario",
    "Measurement",
    "Observer",
    "PairedGain",
    "RunSettings",
    "ScenarioSet",
    "Server",
    "Specialization",
    "TrainingSettings",
    "WarmStart",
    "World",
    "build_agent",
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


def __getattr__(name: str) -> Any:
    """Imports a public name from its module."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
