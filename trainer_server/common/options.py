"""Options as fields of dataclasses, from which the flags of a command derive.

A field has its type and its default; the section `Args` of the class has its meaning. `metadata` of a field is what
`typer.Option` gets besides, such as `{"min": 1}`, and how the command line differs from the field:

- `name`: another name there;
- `flag`: how the flag is written, where that is not `--` and the name;
- `help`: the text of `--help`, where the meaning of the field speaks of Python;
- `parse`: what makes the field's value of that of the command line, whose type is then `type`, and whose default is
  `value`.

A field with `{"flag": None}` is no option of the command.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Annotated, Any, get_type_hints

_OWN_KEYS = ("help", "name", "parse", "type", "value")
"""Keys of metadata that `typer.Option` does not get."""
_ALIKE = 0.75
"""Likeness of two names, from 0 to 1, from which one may be a misspelling of the other: agnet and agent have 0.8."""
_DIGITS = re.compile(r"\d+")
_ENTRY = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def help_of(options: Any) -> dict[str, str]:
    """The meaning of each field, by name and in this order: what the docstring of a dataclass says, or that of a base.

    Args:
        options: The dataclass.
    """
    texts: dict[str, str] = {}
    for base in options.__mro__:
        _, _, section = inspect.cleandoc(base.__doc__ or "").partition("\nArgs:\n")
        for name, text in _ENTRY.findall(section.partition("\n\n")[0]):
            texts.setdefault(name, " ".join(text.split()))
    names = [option.name for option in fields(options)]
    order = [*texts, *names]  # without docstrings (python -OO), the fields' own
    return {name: texts.get(name, "") for name in sorted(names, key=order.index)}


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message that refuses a keyword: the one that may be meant; empty where none is near."""
    return "".join(f": did you mean {match}=…?" for match in get_close_matches(name, list(names), 1))


def near_name(name: str, names: Iterable[str]) -> str | None:
    """The name that another one may be a misspelling of; None: none is near. Names that differ in their numbers alone
    are meant to (agent-1, agent-2)."""
    match = next(iter(get_close_matches(name, list(names), 1, _ALIKE)), None)
    return None if match is None or _DIGITS.sub("", match) == _DIGITS.sub("", name) else match


def flag(name: str) -> str:
    """A field, as the command line writes it."""
    return f"--{name.replace('_', '-')}"


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: a parameter that is a dataclass becomes a flag for each of its fields, with the help of its docstring.

    A field that is a dataclass itself becomes a flag for each field of it, whose names begin with that of the outer
    field's metadata: `{"prefix": "log_"}`.

    Args:
        command: The function of the command. Such a parameter is annotated with its class, or with its class and a
            panel of the help: `Annotated[LoopFlags, "Training loop"]`.
    """
    hints = get_type_hints(command, include_extras=True)
    origins = {name: getattr(hint, "__origin__", hint) for name, hint in hints.items()}
    dataclasses: dict[str, Any] = {name: origin for name, origin in origins.items() if is_dataclass(origin)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in dataclasses:
            panels = getattr(hints[name], "__metadata__", ())
            parameters += _flags(dataclasses[name], panels[0] if panels else None)
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=kind))

    @wraps(command)
    def call(**values: Any) -> None:
        for name, options in dataclasses.items():
            values[name] = _make(options, values)
        command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _options(declaration: Any, prefix: str = "") -> Iterator[tuple[str, Field[Any], Any]]:
    """Each field of a dataclass that is an option: its name on the command line, the field and its type."""
    by_name, hints = {field.name: field for field in fields(declaration)}, get_type_hints(declaration)
    for name in help_of(declaration):
        if by_name[name].metadata.get("flag", "") is not None:
            yield prefix + by_name[name].metadata.get("name", name), by_name[name], hints[name]


def _flags(declaration: Any, panel: str | None, prefix: str = "") -> Iterator[inspect.Parameter]:
    """A parameter of a command for each field of a dataclass."""
    import typer  # not at the top: programs that only read options need no command line

    meanings = help_of(declaration)
    for name, field, hint in _options(declaration, prefix):
        if "prefix" in field.metadata:
            yield from _flags(hint, panel, field.metadata["prefix"])
            continue
        settings = {key: value for key, value in field.metadata.items() if key not in _OWN_KEYS}
        option = typer.Option(
            *settings.pop("flag", flag(name)).split(),
            help=field.metadata.get("help", meanings[field.name]),
            **{"rich_help_panel": panel, **settings},
        )
        default = field.metadata.get("value", field.default)
        yield inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is MISSING else default,
            annotation=Annotated[field.metadata.get("type", hint), option],
        )


def _make(declaration: Any, values: dict[str, Any], prefix: str = "") -> Any:
    """The options that a command line gave, which are taken out of its values."""
    arguments: dict[str, Any] = {}
    for name, field, hint in _options(declaration, prefix):
        if "prefix" in field.metadata:
            arguments[field.name] = _make(hint, values, field.metadata["prefix"])
        else:
            arguments[field.name] = field.metadata.get("parse", lambda value: value)(values.pop(name))
    return declaration(**arguments)
