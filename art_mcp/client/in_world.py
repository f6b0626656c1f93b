"""A server that is started in a copy of a world, for each rollout. Copies with a running server are made ahead."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from art_langgraph.capture.scope import Scope
from art_mcp.client.effects import readers
from art_mcp.client.sdk import Progress, Stdio
from art_mcp.client.session import Session
from art_mcp.worlds.alias import alias
from art_mcp.worlds.change import Change
from art_mcp.worlds.world import Copy, World
from trainer_server.wire import ConfigError, MCPError

WORLD_KEY = "world"
"""Key of a trajectory's metadata. Its value has `changes`, what the run changed in its world."""

AHEAD = 2
"""Copies with a running server that are made ahead, once a rollout has taken one. A start takes about half a second."""

KEPT = 16
"""Copies with a running server that are kept for the next rollouts at most, after rollouts that only read."""


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


class Pool:
    """Makes copies with running servers, some ahead, and as many at once as there are cores.

    Args:
        world: The open world.
        target: The server. Placeholders in its command, environment and working directory name a copy.
        timeouts: Seconds to wait for the start, and seconds to wait for each answer.
        on_change: Called when a server says that its tools have changed.

    Raises:
        ConfigError: A placeholder names no place of the world.
    """

    def __init__(
        self, world: World, target: Stdio, timeouts: tuple[float, float], on_change: Callable[[], None]
    ) -> None:
        for text in (*target.command, *target.env.values(), target.cwd or ""):
            world.aliases.text(text)  # before anything is copied
        self.world = world
        self._timeouts = timeouts
        self._on_change = on_change
        self._target = target
        self.readers: set[str] = set()
        self._kept: deque[Ready] = deque()
        self._ahead: deque[asyncio.Task[Ready]] = deque()
        self._starts = asyncio.Semaphore(os.cpu_count() or 1)

    async def take(self, *, refill: bool = True) -> Ready:
        """A copy with a running server, for one rollout.

        Args:
            refill: Whether others are made meanwhile: the next rollouts will want them.

        Raises:
            MCPError: The copy cannot be made, or the server cannot be started in it.
        """
        while self._kept:
            kept = self._kept.pop()
            if not kept.session.ended:
                return kept
            await self.remove(kept)
        ready = self._ahead.popleft() if self._ahead else None
        try:
            while refill and len(self._ahead) < AHEAD:
                making = self._make()
                self._ahead.append(asyncio.create_task(making, name="mcp world", context=Context()))
            # Shielded: a rollout that is cancelled does not cancel the start, which the next rollout then gets.
            return await (asyncio.shield(ready) if ready else self._make())
        except asyncio.CancelledError:
            if ready and not ready.cancelled():
                self._ahead.append(ready)
            raise

    async def give_back(self, ready: Ready, as_new: bool) -> list[Change]:
        """Takes back what a rollout had.

        Args:
            ready: The copy with its server.
            as_new: Whether the server is as it was. If nothing was changed in the copy either, nothing tells both from
                new ones, and the next rollout gets them. Otherwise they are removed.

        Returns:
            What the rollout has changed. What a server writes at its end counts.
        """
        try:
            if as_new and not ready.session.ended and len(self._kept) < KEPT:
                made = await asyncio.to_thread(ready.copy.changes)
                if not made:
                    self._kept.append(ready)
                    return made
            await ready.session.close()
            made = await asyncio.to_thread(ready.copy.changes)
        except BaseException:
            await self.remove(ready)
            raise
        await self.remove(ready)
        return made

    async def remove(self, ready: Ready) -> None:
        """Ends the server and removes the copy."""
        try:
            await ready.session.close()
        finally:
            await asyncio.to_thread(self.world.remove, ready.copy)

    def learn(self, tools: list[dict[str, Any]]) -> None:
        """Notes which tools only read, from an answer to `tools/list`."""
        self.readers |= readers(tools)

    async def close(self) -> None:
        """Removes what no rollout has."""
        making, kept = list(self._ahead), list(self._kept)
        self._ahead.clear()
        self._kept.clear()
        for task in making:
            task.cancel()
        made = await asyncio.gather(*making, return_exceptions=True)
        await asyncio.gather(*map(self.remove, kept), *(self.remove(one) for one in made if isinstance(one, Ready)))

    async def _make(self) -> Ready:
        async with self._starts:
            copy = await self._copy()
            try:
                target = placed(self._target, copy)
                session = await self.started(target)
                try:
                    await asyncio.to_thread(copy.begin)
                except BaseException:
                    await session.close()
                    raise
            except BaseException as error:
                await asyncio.to_thread(self.world.remove, copy)
                if isinstance(error, MCPError):
                    raise MCPError(_explained(copy, error), failure=error.failure, code=error.code) from None
                raise
            return Ready(copy, target, session)

    async def started(self, target: Stdio) -> Session:
        """Starts a server. Raises MCPError."""
        session = Session(target, self._timeouts, self._on_change)
        await session.open()
        return session

    async def _copy(self) -> Copy:
        """A copy. A thread cannot be cancelled: what it made for nobody is removed."""
        copying = asyncio.ensure_future(asyncio.to_thread(self.world.copy))
        try:
            return await asyncio.shield(copying)
        except OSError as error:
            raise MCPError(f"the world cannot be copied: {error}", failure="closed") from None
        except asyncio.CancelledError:
            [copy] = await asyncio.gather(copying, return_exceptions=True)
            if isinstance(copy, Copy):
                await asyncio.to_thread(self.world.remove, copy)
            raise


class InWorld:
    """The connection of one rollout: a server in a copy of its own.

    The rollout sees aliases instead of the copy's paths, in arguments and in answers. At its end, what it changed goes
    to its metadata. A server that ends is started again in the same copy. A rollout that called only tools that only
    read, and changed nothing, leaves its copy and its server to the next one.

    Args:
        pool: Makes the copy.
        rollout: The rollout. None: the calls outside of rollouts.
    """

    def __init__(self, pool: Pool, rollout: Scope | None) -> None:
        self._pool = pool
        self._rollout = rollout
        self._ready: Ready | None = None
        self._as_new = True
        self._closed = False
        self._lock = asyncio.Lock()

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """Sends a request to the server in the copy. Raises MCPError."""
        ready = await self._entered()
        copy = ready.copy

        async def aliased(done: float, total: float | None, message: str | None) -> None:
            if progress:
                await progress(done, total, copy.from_copy(message))

        if method == "tools/call" and params["name"] not in self._pool.readers:
            self._as_new = False
        try:
            answer = await ready.session.request(method, copy.to_copy(dict(params)), progress and aliased)
        except asyncio.CancelledError:
            self._as_new = False
            raise
        except MCPError as error:
            self._as_new &= error.failure == "protocol"  # otherwise it may be at work still
            raise MCPError(copy.from_copy(str(error)), failure=error.failure, code=error.code) from error
        if method == "tools/list":
            self._pool.learn(answer.get("tools", []))
        aliases: dict[str, Any] = copy.from_copy(answer)
        return aliases

    async def changes(self) -> list[Change]:
        """What was changed in the copy so far."""
        return await asyncio.to_thread(self._ready.copy.changes) if self._ready else []

    async def close(self) -> None:
        """Notes what the rollout changed, and gives the copy back."""
        self._closed = True
        if self._ready:
            ready, self._ready = self._ready, None
            made = await self._pool.give_back(ready, self._as_new)
            if self._rollout:
                record = self._rollout.metadata.setdefault(WORLD_KEY, {"changes": []})
                record["changes"] += [change.model_dump(mode="json") for change in made]

    async def _entered(self) -> Ready:
        """The copy with an open session."""
        async with self._lock:
            if self._ready is None and not self._closed:
                if self._rollout:
                    _claim(self._rollout, self._pool.world)
                self._ready = await self._pool.take(refill=self._rollout is not None)
            elif self._ready and self._ready.session.ended:
                self._ready = replace(self._ready, session=await self._pool.started(self._ready.target))
            if self._ready is None or self._closed:  # also while it was made
                await self.close()
                raise MCPError("the rollout that called it is over", failure="closed")
            return self._ready


_worlds: WeakKeyDictionary[Scope, dict[str, World]] = WeakKeyDictionary()
"""By rollout, the worlds that it works in, by the names of their places."""


def _claim(rollout: Scope, world: World) -> None:
    """Notes that a rollout works in a world. Raises MCPError if it has a place of the same name in another world: its
    model, and the record of its changes, could not tell them apart."""
    worlds = _worlds.setdefault(rollout, {})
    for place in world.places:
        if worlds.setdefault(place.name, world) is not world:
            raise MCPError(
                f"two servers of the rollout have a world at {alias(place)}: give one of them another name, as in "
                f"--world NAME={place.original}",
                failure="closed",
            )


def placed(target: Stdio, copy: Copy) -> Stdio:
    """The server with the paths of a copy instead of placeholders and originals, started in the copy.

    Its working directory is the first place of the world, so that a relative path leads into the copy too. Relative
    paths of files in the command are made absolute first: they are meant from here. Paths that lead into an original
    by links are resolved.

    Raises:
        ConfigError: A word still leads into an original, or a placeholder names no place.
    """
    command = tuple(copy.path(_absolute(word, copy)) for word in target.command)
    env = {name: copy.path(_resolved(value, copy)) for name, value in target.env.items()}
    cwd = copy.path(_absolute(target.cwd, copy)) if target.cwd else str(copy.home)
    for word in (cwd, *command, *env.values()):
        if original := copy.led_into(word, Path(cwd)):
            raise ConfigError(
                f"{copy.from_copy(word)!r} of the server's command, environment or working directory leads into the "
                f"original {original}, which would be written: write {{world:NAME}} in its place"
            )
    env.setdefault("GIT_CEILING_DIRECTORIES", str(copy.directory))  # no repository around the copies is found
    return replace(target, command=command, env=env, cwd=cwd)


def _absolute(word: str, copy: Copy) -> str:
    """A word of a command, or the value in `--option=VALUE`, as an absolute path if it is a relative one that is there.
    A word without a slash or a dot is a name."""
    option, equals, value = word.rpartition("=") if word.startswith("-") else ("", "", word)
    if ("/" in value or "." in value) and "{" not in value and Path(value).exists():
        return f"{option}{equals}{_resolved(str(Path(value).absolute()), copy)}"
    return word


def _resolved(path: str, copy: Copy) -> str:
    """An absolute path without links if it leads into an original. Any other text as it is."""
    if not os.path.isabs(path):
        return path
    resolved = os.path.realpath(path)
    return resolved if copy.led_into(resolved, Path("/")) else path


def _explained(copy: Copy, error: MCPError) -> str:
    """The error of a start, with what is special about it."""
    return (
        f"{copy.from_copy(str(error))}. It was started in a copy of the world, in {copy.from_copy(str(copy.home))}: "
        "name the other files that it needs by absolute paths"
    )


def check_target(target: object) -> Stdio:
    """The target as a command. Raises ConfigError for a URL, whose server cannot be started in a copy."""
    if not isinstance(target, Stdio):
        raise ConfigError(
            f"worlds are for commands, which are started in a copy; {target} is a URL. Instead reset its server before "
            "each run: --reset CMD|URL (reset=…)"
        )
    return target
