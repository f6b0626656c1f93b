"""Engines by name: what `serve --engine` takes.

An engine is added by `ENGINES["name"] = factory`, or named where it is: `--engine module:factory`.
"""

from __future__ import annotations

from trainer_server.engines.base import Engine, EngineFactory, EngineSettings
from trainer_server.engines.vllm.engine import vllm_engines
from trainer_server.wire.plugins import check_members, factory_named

ENGINES: dict[str, EngineFactory] = {"vllm": vllm_engines}
"""Factories of engines by name."""


def engine_factory(name: str) -> EngineFactory:
    """The function that makes the engines of a server, not yet started.

    Args:
        name: A key of ENGINES, or `module:factory` for an engine that is defined elsewhere.

    Returns:
        The factory. It raises ConfigError for settings that its engines cannot have, and for engines that lack a part
        of the protocol.

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
