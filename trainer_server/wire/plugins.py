"""Code from outside the project: found by `module:attribute`, and checked against a protocol."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any, TypeVar

from trainer_server.wire.errors import ConfigError
from trainer_server.wire.steps import LOSS_NAMES

Factory = TypeVar("Factory", bound=Callable[..., Any])


def factory_named(option: str, name: str, known: Mapping[str, Factory], what: str) -> Factory:
    """A function that an option names.

    Args:
        option: The option, for messages.
        name: A key of `known`, or `module:function` for one that is defined elsewhere.
        known: Functions by name.
        what: What the function does, for messages: "makes engines".

    Raises:
        ConfigError: There is no such function, or its module cannot be imported.
    """
    if name in known:
        return known[name]
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise ConfigError(f"{option} {name}: there is {', '.join(sorted(known))}; name another as module:factory")
    try:
        factory = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise ConfigError(f"{option} {name}: {module} cannot be imported: {error}") from None
    if not callable(factory):
        raise ConfigError(f"{option} {name}: {module} has no function {attribute!r} that {what}")
    return factory  # type: ignore[no-any-return]


def check_members(option: str, name: str, made: object, protocol: type) -> None:
    """Raises ConfigError for an object that lacks a part of a protocol."""
    parts = {part for part in (*vars(protocol), *protocol.__annotations__) if not part.startswith("_")}
    if missing := sorted(parts - set(dir(made))):
        asking = f"{protocol.__module__}.{protocol.__name__}"
        raise ConfigError(
            f"{option} {name}: {type(made).__name__} has no {', '.join(missing)}, which {asking} asks for"
        )


def loss_place(definition: str) -> tuple[str, str, str]:
    """Name, module and attribute of a loss. Raises ConfigError for anything but `NAME=MODULE:ATTRIBUTE`."""
    name, _, place = definition.partition("=")
    module, _, attribute = place.partition(":")
    if not (name and module and attribute):
        raise ConfigError(f"--loss {definition}: give NAME=MODULE:ATTRIBUTE, such as mine=my_losses:MINE")
    return name, module, attribute


def check_losses(definitions: Iterable[str]) -> None:
    """Raises ConfigError for a loss of another form, one whose name is taken, or one whose module the trainer process
    will not find."""
    taken = set(LOSS_NAMES)
    for definition in definitions:
        check_loss_place(definition)
        name, _, _ = loss_place(definition)
        if name in taken:
            raise ConfigError(f"--loss {definition}: there is a loss named {name!r} already; choose another name")
        taken.add(name)


def check_loss_place(definition: str) -> None:
    """Raises ConfigError for a loss of another form, or one whose module the trainer process will not find. The module
    itself is not imported: it needs torch."""
    _, module, _ = loss_place(definition)
    if not (_here(module) or _installed(module)):
        raise ConfigError(f"--loss {definition}: there is no module {module!r}. Is it on PYTHONPATH?")


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _here(module: str) -> bool:
    """Whether a module lies in the working directory, where `python -m` of the trainer process looks first."""
    path, names = [os.getcwd()], module.split(".")
    for end in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:end]), path)
        if spec is None:
            return False
        path = list(spec.submodule_search_locations or ())
    return True
