"""Engines by name: what `serve --engine` takes.

An engine is added by `ENGINES["name"] = factory`, or named where it is: `--engine module:factory`.
"""

from __future__ import annotations

from importlib import import_module

from trainer_server.engines.base import Engine, EngineFactory, EngineSettings
from trainer_server.engines.vllm.engine import vllm_engines
from trainer_server.wire import ConfigError

ENGINES: dict[str, EngineFactory] = {"vllm": vllm_engines}
"""Factories of engines by name."""


_MEMBERS = {name for name in (*vars(Engine), *Engine.__annotations__) if not name.startswith("_")}


def make_engines(name: str, settings: EngineSettings) -> list[Engine]:
    """The engines of a server, not yet started.

    Args:
        name: See `engine_factory`.
        settings: What `serve` was asked for.

    Raises:
        ConfigError: There is no such engine, it cannot have these settings, or its class lacks a part of the protocol.
    """
    engines = list(engine_factory(name)(settings))
    for engine in engines:
        if missing := sorted(_MEMBERS - set(dir(engine))):
            kind, protocol = type(engine).__name__, "trainer_server.engines.base.Engine"
            raise ConfigError(f"--engine {name}: {kind} has no {', '.join(missing)}, which {protocol} asks for")
    return engines


def engine_factory(name: str) -> EngineFactory:
    """The factory of an engine.

    Args:
        name: A key of ENGINES, or `module:factory` for one that is defined elsewhere.

    Raises:
        ConfigError: There is no such engine, or its module cannot be imported.
    """
    if name in ENGINES:
        return ENGINES[name]
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigError(f"--engine {name}: there is {', '.join(sorted(ENGINES))}; name another as module:factory")
    try:
        factory = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise ConfigError(f"--engine {name}: {module} cannot be imported: {error}") from None
    if not callable(factory):
        raise ConfigError(f"--engine {name}: {module} has no function {attribute!r} that makes engines")
    return factory  # type: ignore[no-any-return]
