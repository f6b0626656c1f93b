"""A copy with a server that runs in it: the command, environment and working directory with the paths of the copy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from art_mcp.client.connection.sdk import Progress, Stdio
from art_mcp.client.connection.session import Session
from art_mcp.worlds.alias import alias
from art_mcp.worlds.world import Copy, World
from trainer_server.wire import ConfigError, MCPError


def place_server(target: Stdio, copy: Copy) -> Stdio:
    """The server with the paths of a copy instead of placeholders and originals, started in the copy.

    Its working directory is the first place of the world, so that a relative path leads into the copy too. Relative
    paths of files in the command are made absolute first: they are meant from here. Paths that lead into an original
    by links are resolved.

    Raises:
        ConfigError: A word still leads into an original, or a placeholder names no place.
        OSError: The settings of git cannot be written.
    """
    command = tuple(copy.path(_absolute(word, copy)) for word in target.command)
    env = {name: copy.path(_resolve_path(value, copy)) for name, value in target.env.items()}
    cwd = copy.path(_absolute(target.cwd, copy)) if target.cwd else str(copy.home)
    for word in (cwd, *command, *env.values()):
        if original := copy.led_into(word, Path(cwd)):
            raise ConfigError(
                f"{copy.from_copy(word)!r} of the server's command, environment or working directory leads into the "
                f"original {original}, which would be written: write {{world:NAME}} in its place"
            )
    return replace(target, command=command, env={**env, **copy.git_environment(env)}, cwd=cwd)


def check_files(text: str, world: World) -> None:
    """Raises ConfigError if a text of a server's command names no place of the world, or something in one that is a
    file: every call of the server would fail."""
    originals = world.aliases.text(text)
    for place in world.places:
        if place.kind in ("file", "database") and f"{alias(place)}/" in originals:
            raise ConfigError(
                f"{text!r} of the server's command looks for something in {{world:{place.name}}}, but that is the file "
                f"{place.original} itself: write {{world:{place.name}}} alone, or --world with its directory, "
                f"{place.original.parent}"
            )


def unnamed_world(target: Stdio, world: World) -> str | None:
    """A note for people if neither command, environment nor working directory of a server names a place of its world:
    the server may then work on the originals. None: one does, or the world is empty.

    Args:
        target: The server, before it is placed in a copy.
        world: The world.
    """
    texts = (*target.command, *target.env.values(), target.cwd or "")
    named = (text if "{" in text else _real(text) for text in texts)
    aliases = [alias(place) for place in world.places]
    if any(name in world.aliases.text(text) for text in named for name in aliases):
        return None
    if all(place.kind == "directory" and not any(place.original.iterdir()) for place in world.places):
        return None
    return (
        f"nothing in the server's command names {' or '.join(aliases)}: a server that finds its data by a path of its "
        "own works on the original. Write {world} (of several, {world:NAME}) where the command or --env has the path. "
        "Only a server that looks in its working directory needs nothing"
    )


def _real(text: str) -> str:
    """The real path that a text, or the value in `--option=VALUE`, leads to if it is there. Any other text as it is."""
    value = text.rpartition("=")[2] if text.startswith("-") else text
    return os.path.realpath(os.path.expanduser(value)) if value and os.path.exists(os.path.expanduser(value)) else text


def _absolute(word: str, copy: Copy) -> str:
    """A word of a command, or the value in `--option=VALUE`, as an absolute path if it is a relative one that is there.
    A word without a slash or a dot is a name."""
    option, equals, value = word.rpartition("=") if word.startswith("-") else ("", "", word)
    if ("/" in value or "." in value) and "{" not in value and Path(value).exists():
        return f"{option}{equals}{_resolve_path(str(Path(value).absolute()), copy)}"
    return word


def _resolve_path(path: str, copy: Copy) -> str:
    """An absolute path without links if it leads into an original. Any other text as it is."""
    if not os.path.isabs(path):
        return path
    real = os.path.realpath(path)
    return real if copy.led_into(real, Path("/")) else path


def check_target(target: object) -> Stdio:
    """The target as a command. Raises ConfigError for a URL, whose server cannot be started in a copy."""
    if not isinstance(target, Stdio):
        raise ConfigError(
            f"worlds are for commands, which are started in a copy; {target} is a URL. Instead reset its server before "
            "each run: --reset CMD|URL (reset=…)"
        )
    return target


@dataclass(frozen=True, slots=True)
class Ready:
    """A copy with a server that runs in it.

    Args:
        copy: The copy.
        target: The server, with the paths of the copy.
        session: The open session with it.
    """

    copy: Copy
    target: Stdio
    session: Session

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None) -> dict[str, Any]:
        """Sends a request. The caller sees aliases instead of the copy's paths. Raises MCPError."""

        async def forward_progress(at: float, total: float | None, message: str | None) -> None:
            if progress:
                await progress(at, total, self.copy.from_copy(message))

        try:
            answer = await self.session.request(method, self.copy.to_copy(dict(params)), progress and forward_progress)
        except MCPError as error:
            raise error.with_texts(self.copy.from_copy) from error
        aliases: dict[str, Any] = self.copy.from_copy(answer)
        return aliases
