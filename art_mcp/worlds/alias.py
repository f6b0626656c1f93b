"""The path by which a model knows a world, the same in every run, and its translation to the path of a copy."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from art_mcp.worlds.place import Place
from trainer_server.wire import ConfigError

WORLD = "/world"
"""The directory of all places, as the model knows it. A place is `/world/NAME`."""

PLACEHOLDER = re.compile(r"\{world(?::([^{}]*))?\}")
"""Stands for a place in commands, environments and texts."""

_BEFORE = r"(?:(?<![\w.~/\\-])|(?<=file://)|(?<=:///)|(?<=\A-\w))"
"""What may not stand before an absolute path in a text: otherwise it is the end of another path, or of a URL. Three
slashes precede it in the URL of a database, and a letter in an option such as `-v/srv/data:/data`."""
_REST = re.compile(r"""[^\s'"]*""")
"""The rest of a path."""
_AFTER = r"(?![\w-])(?!\.\w)"
"""What may not follow a path: otherwise it is the beginning of another name."""


def alias(place: Place) -> str:
    """The path by which the model knows a place."""
    return f"{WORLD}/{place.name}"


class Aliases:
    """Replaces what names a place by its alias: the placeholders `{world}` and `{world:NAME}`, and the original's path.

    Args:
        places: The places of the world.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._names = {place.name: alias(place) for place in places}
        self._originals = [
            (re.compile(_BEFORE + re.escape(path).replace("/", "/+") + _AFTER), alias(place))
            for place in places
            for path in place.spellings
        ]

    def text(self, text: str, root: str = "") -> str:
        """The text with aliases.

        Args:
            text: The text.
            root: What is put before each alias: the root of a copy.

        Raises:
            ConfigError: A placeholder names no place, or `{world}` stands for several.
        """
        return self.originals(PLACEHOLDER.sub(lambda match: root + self._alias(match[0], match[1]), text), root)

    def originals(self, text: str, root: str = "") -> str:
        """The text with aliases for the paths of originals only. The arguments are those of `text`."""
        for original, name in self._originals:
            text = original.sub((root + name).replace("\\", r"\\"), text)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value with aliases in all its texts. Raises ConfigError as `text`."""
        return replace_texts(value, self.text)

    def _alias(self, placeholder: str, name: str | None) -> str:
        if name is None and len(self._names) == 1:
            return next(iter(self._names.values()))
        if name in self._names:
            return self._names[name]
        names = ", ".join(f"{{world:{name}}}" for name in self._names)
        raise ConfigError(f"{placeholder} names no single place of the world; there is {names}")


class Translation:
    """Translates between aliases and the paths of one copy, which has the place NAME at `ROOT/world/NAME`.

    So the path of a copy is its root and the alias. To the copy, the root is put before each alias; from the copy, the
    root is taken away wherever it stands. The root is a name that occurs nowhere else, so that this direction cannot
    err. It is also found as JSON and as URLs write it.

    Args:
        root: The root of the copy, an absolute path.
        aliases: Replaces placeholders and originals, which a model may know from a task.
    """

    def __init__(self, root: str, aliases: Aliases) -> None:
        self._root = root
        self._aliases = aliases
        spellings = {root, json.dumps(root)[1:-1], quote(root), root.replace("/", "\\/")}
        self._written = re.compile("|".join(re.escape(text) for text in sorted(spellings, key=len, reverse=True)))
        self._alias = re.compile(f"{_BEFORE}(?=(\\\\?)/)\\\\?/world{_AFTER}")

    def to_copy(self, value: Any) -> Any:
        """A JSON value with the copy's paths in all its texts. Placeholders that name nothing stay."""
        return replace_texts(value, self.path)

    def path(self, text: str) -> str:
        """A text with the copy's paths."""
        try:
            text = self._aliases.text(text)
        except ConfigError:  # it is the model's text, and may be of templates
            text = self._aliases.originals(text)
        return self._restore_paths(text)

    def word(self, text: str) -> str:
        """A word of a command with the copy's paths, whatever stands before a placeholder: `sqlite:///{world}`.

        Raises:
            ConfigError: A placeholder names no place.
        """
        return self._restore_paths(self._aliases.text(text, self._root))

    def _restore_paths(self, text: str) -> str:
        """A text with the copy's paths for aliases. An alias from which `..` leads out of the world stays: such a path
        is that of no place, and in the copy it would lead to other copies."""
        root, escape = self._root, self._root.replace("/", "\\/")

        def to_copy(match: re.Match[str]) -> str:
            rest = _REST.match(text, match.end())
            path = os.path.normpath(f"{WORLD}{rest[0] if rest else ''}".replace("\\/", "/"))
            inside = path == WORLD or path.startswith(f"{WORLD}/")
            return ((escape if match[1] else root) if inside else "") + match[0]

        return self._alias.sub(to_copy, text)

    def from_copy(self, value: Any) -> Any:
        """A JSON value with aliases in all its texts."""
        return replace_texts(value, self.text)

    def text(self, text: str) -> str:
        """A text with aliases. The root alone becomes `/`."""
        return self._written.sub(lambda match: "" if text[match.end() : match.end() + 1] in ("/", "\\") else "/", text)


def replace_texts(value: Any, text: Callable[[str], str]) -> Any:
    """A JSON value with all its texts changed, the keys of objects included."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {text(key): replace_texts(item, text) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_texts(item, text) for item in value]
    return value
