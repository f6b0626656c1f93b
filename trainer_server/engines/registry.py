"""Engines by name, as `serve --engine` takes them.

An engine is registered by `ENGINES["name"] = factory`, or named by its place: `--engine module:factory`.
"""

from __future__ import annotations

from importlib import import_module

from trainer_server.engines.base import Engine, EngineFactory, EngineSettings
from trainer_server.engines.vllm.engine import vllm_engines
from trainer_server.wire import ConfigError

ENGINES: dict[str, EngineFactory] = {"vllm": vllm_engines}
"""Factories of engines by name."""


_MEMBERS = {name for name in (*vars(Engine), *Engine.__annotations__) if not name.startswith("_")}
"""Names of the methods and attributes of the protocol Engine."""


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
    factory = ENGINES.get(name) or _imported(name)

    def make(settings: EngineSettings) -> list[Engine]:
        engines = list(factory(settings))
        for engine in engines:
            if missing := sorted(_MEMBERS - set(dir(engine))):
                kind, protocol = type(engine).__name__, "trainer_server.engines.base.Engine"
                raise ConfigError(f"--engine {name}: {kind} has no {', '.join(missing)}, which {protocol} asks for")
        return engines

    return make


def _imported(name: str) -> EngineFactory:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        known = ", ".join(sorted(ENGINES))
        raise ConfigError(f"--engine {name}: there is {known}; name another engine as module:factory")
    try:
        factory = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise ConfigError(f"--engine {name}: {module} cannot be imported: {error}") from None
    if not callable(factory):
        raise ConfigError(f"--engine {name}: {module} has no function {attribute!r} that makes engines")
    return factory  # type: ignore[no-any-return]
