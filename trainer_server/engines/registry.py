"""Engines by name, as `serve --engine` takes them.

An engine is registered by `ENGINES["name"] = factory`, or named by its place: `--engine module:factory`.
"""

from __future__ import annotations

from trainer_server.common.plugins import check_members, factory_named
from trainer_server.engines.base import Engine, EngineFactory, EngineSettings
from trainer_server.engines.vllm.settings import vllm_engines

ENGINES: dict[str, EngineFactory] = {"vllm": vllm_engines}
"""Factories of engines by name."""


def engine_factory(name: str) -> EngineFactory:
    """The function that makes the engines of a server, without starting them.

    Args:
        name: A key of ENGINES, or `module:factory` for an engine that is defined elsewhere.

    Returns:
        The factory. It raises ConfigError for settings that its engines do not support, and for engines that lack a
        method or attribute of the protocol.

    Raises:
        ConfigError: There is no such engine, or its module cannot be imported.
    """
    factory = factory_named("--engine", name, ENGINES, "makes engines")

    def make(settings: EngineSettings) -> list[Engine]:
        engines = list(factory(settings))
        for engine in engines:
            check_members("--engine", name, engine, Engine)
        return engines

    return make
