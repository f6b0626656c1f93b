"""Code from outside the project: found by `module:attribute`, and checked against a protocol."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any, Generic, Protocol, TypeVar

from trainer_server.wire.errors import ConfigError
from trainer_server.wire.steps import LOSS_NAMES

log = logging.getLogger(__name__)

UNREDACTED = "[not stored: redaction failed]"
"""Stands for a text that the user's function could not redact."""
TEXTS = frozenset(
    {
        *(
            "input",
            "metadata",
            "output",
            "error",
            "reward_error",
            "independent_reward_error",
            "reward_reason",
            "reason",
        ),
        *("messages", "message", "prompt", "system", "instructions"),
        *("arguments", "result", "structured", "content", "failure", "progress"),
    }
)
"""Parts of records that people, models and tools write."""
_PARTS = frozenset({"scenario", "completions", "tool_calls", "nodes", "request"})
"""Parts of records that have such parts."""
_NAMES = frozenset({"role", "type", "id", "tool_call_id", "call_id"})

Factory = TypeVar("Factory", bound=Callable[..., Any])


def factory_named(option: str, name: str, factories: Mapping[str, Factory], what: str) -> Factory:
    """A function that an option names.

    Args:
        option: The option, for messages.
        name: A key of `factories`, or `module:function` for one that is defined elsewhere.
        factories: Functions by name.
        what: What the function does, for messages: "makes engines".

    Raises:
        ConfigError: There is no such function, or its module cannot be imported.
    """
    if name in factories:
        return factories[name]
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        choice = f"there is {', '.join(sorted(factories))}; name another as" if factories else "name it as"
        raise ConfigError(f"{option} {name}: {choice} module:{'factory' if factories else 'function'}")
    try:
        factory = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise ConfigError(f"{option} {name}: {module} cannot be imported: {error}") from None
    if not callable(factory):
        raise ConfigError(f"{option} {name}: {module} has no function {attribute!r} that {what}")
    return factory  # type: ignore[no-any-return]


def check_members(option: str, name: str, instance: object, protocol: type) -> None:
    """Raises ConfigError for an object that lacks a part of a protocol."""
    kinds = [kind for kind in protocol.__mro__ if kind not in (Protocol, Generic, object)]
    names = {name for kind in kinds for name in (*vars(kind), *kind.__annotations__)}
    parts = {part for part in names if not part.startswith("_")}
    if missing := sorted(parts - set(dir(instance))):
        needed_by = f"{protocol.__module__}.{protocol.__name__}"
        raise ConfigError(
            f"{option} {name}: {type(instance).__name__} has no {', '.join(missing)}, which {needed_by} asks for"
        )


class Redactor:
    """A function of the user's that takes out of texts what must not be stored.

    It gets every text in the parts of a record that people, models and tools write, and returns what is stored instead.
    Names and ids that the records need to be read again are left alone. Where it raises, or returns no text, nothing of
    the text is stored.

    Args:
        option: The option or variable that names the function, for messages.
        name: `module:function`.

    Raises:
        ConfigError: There is no such function.
    """

    def __init__(self, option: str, name: str) -> None:
        self._function: Callable[[str], object] = factory_named(option, name, {}, "takes a text and returns one")
        self._option, self._warned = f"{option} {name}", False

    def record(self, record: Any) -> Any:
        """A record, as JSON has it, with its texts redacted: those below the names of `TEXTS`, at any depth of lists
        and of the parts of a record."""
        if isinstance(record, list):
            return [self.record(part) for part in record]
        if not isinstance(record, dict):
            return record
        return {
            name: self.text(value) if name in TEXTS else self.record(value) if name in _PARTS else value
            for name, value in record.items()
        }

    def text(self, value: Any) -> Any:
        """A JSON value with all of its texts redacted, but for names and ids in messages."""
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, list):
            return [self.text(item) for item in value]
        if not isinstance(value, dict):
            return value
        names = _NAMES | {"name"} if "arguments" in value or value.get("role") == "tool" else _NAMES
        return {
            name: inner if name in names and isinstance(inner, str) else self.text(inner)
            for name, inner in value.items()
        }

    def _redact(self, text: str) -> str:
        try:
            result = self._function(text)
            if isinstance(result, str):
                return result
            problem = f"returned {type(result).__name__}, not a text"
        except Exception as error:  # the user's function; its message may have the text in it
            problem = f"raised {type(error).__name__}"
        if not self._warned:
            self._warned = True
            log.error("%s %s: %r is stored in place of such texts (said once)", self._option, problem, UNREDACTED)
        return UNREDACTED


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
    names = set(LOSS_NAMES)
    for definition in definitions:
        check_loss_place(definition)
        name, _, _ = loss_place(definition)
        if name in names:
            raise ConfigError(f"--loss {definition}: there is a loss named {name!r} already; choose another name")
        names.add(name)


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
