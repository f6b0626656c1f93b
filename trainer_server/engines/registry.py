"""Engines by name: what `serve --engine` takes.

An engine is added by `ENGINES["name"] = factory`, or named where it is: `--engine module:factory`.
"""

from __future__ import annotations

from importlib import import_module

from trainer_server.engines.base import EngineFactory
from trainer_server.engines.vllm.engine import vllm_engines
from trainer_server.wire import ConfigError

ENGINES: dict[str, EngineFactory] = {"vllm": vllm_engines}
"""Factories of engines by name."""


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
