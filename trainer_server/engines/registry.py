"""Engines by name, as `serve --engine` takes them: the one table, through which the server reaches vLLM.

An engine is registered by `ENGINES["name"] = factory`, or named by its place: `--engine module:factory`.
"""

from __future__ import annotations

from pathlib import Path

from trainer_server.common.plugins import check_members, factory_named
from trainer_server.engines.base import Engine, EngineFactory, EngineSettings
from trainer_server.engines.vllm.install import engine_python
from trainer_server.engines.vllm.parsers import check_parser_names
from trainer_server.engines.vllm.settings import vllm_engines
from trainer_server.engines.vllm.teacher import VLLMTeacher

ENGINES: dict[str, EngineFactory] = {"vllm": vllm_engines}
"""Factories of engines by name."""
Teacher = VLLMTeacher
"""The client of a teacher (`Distillation(teacher=URL)`), which is a vLLM."""


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


def check_installed(name: str, cache: Path) -> None:
    """Raises EngineError for an engine that is to be started here and is not installed.

    Args:
        name: A key of ENGINES, or `module:factory`; only vLLM is checked.
        cache: Directory of what can be made again; vLLM's environment is in it.
    """
    if name == "vllm":
        engine_python(cache)


def check_parsers(name: str, cache: Path, *, tools: str, reasoning: str) -> None:
    """Raises ConfigError for a parser that the engine does not know, EngineError if it does not say.

    Args:
        name: As in `check_installed`.
        cache: As in `check_installed`.
        tools: `--tool-call-parser`.
        reasoning: `--reasoning-parser`.
    """
    if name == "vllm":
        check_parser_names(cache, tools=tools, reasoning=reasoning)
