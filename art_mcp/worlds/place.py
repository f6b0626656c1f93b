"""A place: an original of a world, with the name by which commands, tasks and models know it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from art_mcp.worlds import database, repository
from trainer_server.wire import ConfigError

Kind = Literal["directory", "repository", "database", "file"]

Worlds = str | Path | Sequence[str | Path]
"""Paths of originals: `PATH`, or `NAME=PATH`, which also gives the name."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """An original of a world.

    Args:
        name: Its name in the world: `/world/NAME` to the model, and `{world:NAME}` in commands.
        original: Its absolute path, without symbolic links.
        kind: What it is.
        given_path: The absolute path by which it was given, which may lead to the original by symbolic links.
    """

    name: str
    original: Path
    kind: Kind
    given_path: Path | None = None

    @property
    def spellings(self) -> list[str]:
        """The paths by which people name it: without links, as it was given, and with `~`. The longest first."""
        paths = {self.original, self.given_path or self.original}
        home = Path(os.path.expanduser("~"))
        short = {f"~/{path.relative_to(home)}" for path in paths if path != home and path.is_relative_to(home)}
        return sorted({*map(str, paths), *short}, key=len, reverse=True)


def places_of(worlds: Worlds) -> list[Place]:
    """Makes places of paths.

    A name is that of the file or directory. Characters other than ASCII letters, digits, `.`, `_` and `-` become `-`,
    so that no encoding of a path changes it. The second place of the same name gets `-2`.

    Args:
        worlds: The paths.

    Raises:
        ConfigError: There is no such file or directory, a name is invalid or given twice, or a place is in another.
    """
    places: list[Place] = []
    for word in [worlds] if isinstance(worlds, str | Path) else worlds:
        name, path = _split_name(word)
        try:
            original = path.expanduser().resolve(strict=True)
        except OSError as error:
            raise ConfigError(
                f"the world {str(word)!r} cannot be copied: {error.strerror}. It must be there, if only empty"
            ) from None
        if not (original.is_dir() or original.is_file()):
            raise ConfigError(f"the world {str(word)!r} is neither a directory nor a file")
        for other in places:
            if original.is_relative_to(other.original) or other.original.is_relative_to(original):
                raise ConfigError(f"the worlds {original} and {other.original} overlap: name the outer one only")
        names = {place.name for place in places}
        if name is None:
            name = _free(re.sub(r"[^A-Za-z0-9._-]+", "-", original.name).lstrip(".-_") or "data", names)
        elif not _NAME.fullmatch(name) or name in names:
            raise ConfigError(f"the world {str(word)!r}: {name!r} is no name of its own of letters, digits, . _ and -")
        places.append(Place(name, original, kind_of(original), Path(os.path.abspath(path.expanduser()))))
    if not places:
        raise ConfigError("a world needs at least one path")
    return places


def kind_of(path: Path) -> Kind:
    """What a file or directory is. An empty file is a database if its suffix says so."""
    if path.is_dir():
        return "repository" if repository.is_repository(path) else "directory"
    return "database" if database.is_database(path) else "file"


def _split_name(world: str | Path) -> tuple[str | None, Path]:
    """The name that is given with a path, or None, and the path. A path that is there is never divided at its `=`."""
    name, equals, path = str(world).partition("=")
    if isinstance(world, Path) or not equals or Path(world).expanduser().exists():
        return None, Path(world)
    return name, Path(path)


def _free(name: str, names: set[str]) -> str:
    """The name, or the first of NAME-2, NAME-3 … that is free."""
    number, free = 1, name
    while free in names:
        number += 1
        free = f"{name}-{number}"
    return free
