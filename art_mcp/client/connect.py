"""Connects to an MCP server: a stdio command, a streamable-HTTP URL, or a cassette of recorded answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from art_langgraph.capture.scope import Scope
from art_langgraph.loop.options import keywords_of
from art_mcp.client.capture import Record
from art_mcp.client.cassette import Cassette
from art_mcp.client.connection.patience import Patience, asked_to_wait, refused
from art_mcp.client.connection.sdk import Http, Stdio, Target, words_of
from art_mcp.client.connection.session import Reopening
from art_mcp.client.connection.tool_filter import LEFT_OUT
from art_mcp.client.copies.placing import check_target, unnamed_world
from art_mcp.client.copies.pool import Pool
from art_mcp.client.in_world import InWorld
from art_mcp.client.live import Isolation, Live, Source
from art_mcp.client.masking import MaskedSource, secrets_of
from art_mcp.client.reset import AfterReset, Reset, ResetQueue
from art_mcp.client.result import MAX_RESULT, CallResult
from art_mcp.client.tools import as_langchain_tool
from art_mcp.worlds.alias import PLACEHOLDER
from art_mcp.worlds.change import Change
from art_mcp.worlds.observers.observer import Observer
from art_mcp.worlds.place import Worlds
from art_mcp.worlds.world import World
from trainer_server.wire import ConfigError, MCPError

log = logging.getLogger("art_mcp")

TIMEOUT = 30.0
"""Seconds to wait for an answer of a server."""

START_TIMEOUT = 60.0
"""Seconds to wait until a server has started and answered `initialize`."""

MAX_PAGES = 1_000
"""Maximum number of pages to read of a list, for servers whose cursor never ends."""

METHOD_NOT_FOUND = -32601
"""JSON-RPC error code for a method that the server does not have."""


class Server:
    """A connected MCP server. Many rollouts may use it at the same time.

    `name`, `version`, `instructions` and `capabilities` are as the server gave them in its answer to `initialize`. A
    server without a name is called "unknown". `world` is what each rollout gets a copy of, or None. `serial` says
    whether rollouts use the server one after another, because it is reset before each. `left_out` has the tools that
    cannot be read, by name, and why; it is filled when tools are listed.

    Args:
        source: Answers the requests: sessions with the server, or a cassette.
        info: The answer to `initialize`.
        max_result: Maximum number of characters of a result that are kept; the result says what was left out.
        world: The world of the server.
        serial: Whether it is reset before each rollout.
    """

    def __init__(
        self,
        source: Source,
        info: Mapping[str, Any],
        max_result: int,
        world: World | None = None,
        serial: bool = False,
    ) -> None:
        self._source = source
        self.world = world
        self.serial = serial
        self._max_result = max_result
        self._changed = False
        server_info = info.get("serverInfo") or {}
        self._patience = Patience(str(server_info.get("name") or "the MCP server"))
        self.left_out: dict[str, str] = {}
        self._warned: dict[str, str] = {}
        self.name = str(server_info.get("name") or "unknown")
        self.version = str(server_info.get("version") or "")
        self.instructions = str(info.get("instructions") or "")
        self.capabilities: dict[str, Any] = dict(info.get("capabilities") or {})

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallResult:
        """Calls a tool, and records the call in the running trajectory.

        Args:
            tool: Name of the tool.
            arguments: Its arguments, as JSON values.

        Returns:
            The result. A call that fails or times out does not raise: its result has `is_error`. A call that was
            refused because there are too many (429) is made again after a while; if it is refused until the end, the
            result has the failure "limited".
        """
        with Record(self.name, self.version, tool, arguments) as record:
            try:
                await self._still_has(tool)
                result = await self._call_tool(tool, arguments, record)
            except MCPError as error:
                result = CallResult.of_error(error, self.name)
            record.end(result)
            return result

    async def _call_tool(self, tool: str, arguments: dict[str, Any], record: Record) -> CallResult:
        """The result of a call. A call that was refused because there are too many is made again after a while.

        Raises:
            MCPError: The server did not answer, or it refused the call until the end.
        """
        params = {"name": tool, "arguments": arguments}
        for attempt in count(1):
            answer = await self._source.request("tools/call", params, record.progress)
            result = CallResult.of(answer, self._max_result)
            if not refused(result):
                return result
            if not await self._patience.wait(attempt, asked_to_wait(result)):
                raise MCPError(f"{tool} was refused {attempt} times: {result.text[:200]}", failure="limited")
        raise AssertionError("count() does not end")

    @property
    def disposable(self) -> bool:
        """Whether what a rollout changes is gone after it, so that every tool may be called."""
        return self.world is not None or self.serial

    async def changes(self) -> list[Change] | None:
        """What the current rollout has changed in its world so far. None: there is no world."""
        return await self._source.changes()

    async def rewind(self) -> bool:
        """Notes what the world of the current rollout has, the first time, and later puts that back. The server runs
        on, and keeps what it has in its memory. False: there is no world, or it cannot be put back."""
        return await self._source.rewind()

    async def tools(self) -> list[BaseTool]:
        """Lists the server's tools as LangChain tools, with their complete input schemas.

        A tool that LangChain cannot offer to a model is left out: otherwise no model would get any of them.

        Raises:
            MCPError: The server did not answer, its answer is invalid, or none of its tools can be read.
        """
        entries = await self.listing("tools/list")
        tools = []
        for tool in entries:
            usable = as_langchain_tool(self.call, tool)
            try:
                convert_to_openai_tool(usable)
            except Exception as error:  # of whatever kind: LangChain says of none what it raises
                self._leave_out(tool["name"], f"inputSchema: {error}")
            else:
                tools.append(usable)
        if entries and not tools:
            raise self._no_tool()
        return tools

    def _leave_out(self, name: str, reason: str) -> None:
        if self._warned.get(name) != reason:
            self._warned[name] = reason
            log.warning("the tool %s of %s is left out: %s", name, self.name, reason)
        self.left_out[name] = reason

    def _no_tool(self) -> MCPError:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(self.left_out.items())[:5])
        return MCPError(f"no tool of {self.name} can be read: {reasons}")

    async def listing(self, method: str) -> list[dict[str, Any]]:
        """Reads all pages of a list.

        Args:
            method: `tools/list`, `resources/list`, `resources/templates/list` or `prompts/list`.

        Returns:
            The entries as the server gave them. Empty if the server has no such list. Tools that cannot be read are not
            among them, but in `left_out`.

        Raises:
            MCPError: The server did not answer, its answer is invalid, or it has tools, and none can be read.
        """
        kind = method.split("/")[0]
        if self.capabilities and kind not in self.capabilities:
            return []
        key = {"resources/templates/list": "resourceTemplates"}.get(method, kind)
        entries: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        if method == "tools/list":
            self._changed = False  # before the request: they may change again in the meantime
            self.left_out = {}
        for _ in range(MAX_PAGES):
            try:
                page = await self._source.request(method, params)
            except MCPError as error:
                if error.code == METHOD_NOT_FOUND:  # some servers announce resources but have no templates
                    return []
                raise
            entries += page.get(key, ())
            for name, reason in ((page.get("_meta") or {}).get(LEFT_OUT) or {}).items():
                self._leave_out(name, reason)
            if not page.get("nextCursor"):
                if self.left_out and not entries and key == "tools":
                    raise self._no_tool()
                return entries
            params = {"cursor": page["nextCursor"]}
        raise MCPError(f"{method} of {self.name} has more than {MAX_PAGES:,} pages: its cursor never ends")

    async def read(self, uri: str) -> list[dict[str, Any]]:
        """Reads a resource.

        Args:
            uri: URI of the resource.

        Returns:
            Its contents, each with `uri`, `mimeType`, and `text` or `blob`.

        Raises:
            MCPError: The server has no such resource, or did not answer.
        """
        answer = await self._source.request("resources/read", {"uri": uri})
        return list(answer.get("contents", ()))

    def tools_changed(self) -> None:
        """Notes that the server has changed its tools. The next call lists them first."""
        self._changed = True

    async def _still_has(self, tool: str) -> None:
        """Lists the tools again if they have changed. Raises MCPError if the tool is not among them."""
        if self._changed:
            names = {entry["name"] for entry in await self.listing("tools/list")}
            if names and tool not in names:
                current = ", ".join(sorted(names))
                raise MCPError(f"it has changed its tools, and {tool} is gone. Its tools are now: {current}")


@dataclass(frozen=True, kw_only=True)
class WorldOptions:
    """What a server works on: keywords of every function that connects to one.

    Args:
        worlds: Paths of what a command works on: directories, files, SQLite databases, Git repositories. Each is `PATH`
            or `NAME=PATH`. Each rollout gets a copy of them, with a server of its own that is started there; the calls
            outside of rollouts share another one. The originals are never written. `{world}` or `{world:NAME}` in the
            command, in `env` and `cwd` is the path of the copy, and so is the path of an original. Models see and say
            `/world/NAME`.
        reset: Resets the server before each rollout, for servers whose world cannot be copied: a command, a URL that is
            sent a POST, or a function. Rollouts then use the server one after another.
    """

    worlds: Worlds | None = None
    reset: Reset | None = None

    def check_unused(self) -> None:
        """Raises ConfigError if any is given, for a server that is connected already."""
        if self.worlds is not None or self.reset is not None:
            raise ConfigError(
                "worlds= and reset= are for a server to connect to, by its command or URL; else give them to `connect`"
            )


@dataclass(frozen=True, kw_only=True)
class ConnectOptions(WorldOptions):
    """Arguments of `connect`.

    Args:
        server: An http(s) URL, or a command as a string or a list.
        env: Environment variables for a command. The process gets these and the few that the SDK passes on, such as
            HOME and PATH. In what the server answers, the values of those that are named like a secret (GITHUB_TOKEN)
            are replaced by their names; so are those of headers.
        cwd: Working directory of a command. None takes that of this process.
        headers: HTTP headers for a URL.
        auth: Authentication for a URL, as the SDK's HTTP client takes it, such as the SDK's OAuthClientProvider.
        timeout: Seconds to wait for each answer.
        start_timeout: Seconds to wait for the answer to `initialize`. Downloads by `npx` or `uvx` count.
        isolation: "shared" uses a single session. "session" opens a session for each rollout, for servers with a state:
            the first call of a rollout opens it, and the end of the rollout closes it. Calls outside of `rollout` and
            `gather` share a session. In a world, "shared" means that rollouts share a server until they call a tool
            that may change something.
        cassette: Records the answers, or gives recorded ones. A replay needs no server.
        max_result: Maximum number of characters of a result that are kept. A longer result is cut, and its last line
            says so. It is no error.
        observers: Observers of your own for files of the world.
    """

    server: str | Sequence[str] = field(kw_only=False)
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    headers: Mapping[str, str] | None = None
    auth: Any = None
    timeout: float = TIMEOUT
    start_timeout: float = START_TIMEOUT
    isolation: Isolation = "shared"
    cassette: Cassette | None = None
    max_result: int = MAX_RESULT
    observers: Sequence[Observer] = ()

    def target(self) -> Target:
        """The URL or the command.

        Raises:
            ConfigError: An option does not apply to this kind of server, or the command is empty, has an open
                quotation, or names a place of a world where there is none.
        """
        server, worldless = self.server, self.worlds is None and self.cassette is None
        if isinstance(server, str) and server.startswith(("http://", "https://")):
            if self.env or self.cwd:
                raise ConfigError(f"env and cwd are for commands; {server!r} is a URL")
            return Http(server, dict(self.headers or {}), self.auth)
        if self.headers or self.auth:
            raise ConfigError(f"headers and auth are for URLs; {server!r} is a command")
        try:
            words = words_of(server) if isinstance(server, str) else list(server)
        except ValueError as error:
            message = f"the command of the MCP server {server!r} cannot be read as a shell does: {error}"
            raise ConfigError(message) from None
        if not words:
            raise ConfigError("the command of the MCP server is empty")
        env = dict(self.env or {})
        for word in (*words, *env.values()) if worldless else ():
            if place := PLACEHOLDER.search(word):
                raise ConfigError(
                    f"{place[0]} stands for a place of a world, and none is given: --world PATH, or worlds="
                )
        return Stdio(tuple(words), env, self.cwd)


@keywords_of(ConnectOptions)
@asynccontextmanager
async def connect(options: ConnectOptions) -> AsyncIterator[Server]:
    """Connects to an MCP server. Its sessions and their processes end when the block is left.

    Yields:
        The connected server.

    Raises:
        ConfigError: An option does not apply to this kind of server, the command is empty or has an open quotation, or
            a world cannot be copied, or is named by the command and missing.
        MCPError: The server cannot be started or reached.
    """
    target, cassette, reset = options.target(), options.cassette, options.reset
    if cassette and not (options.worlds is None and reset is None):
        raise ConfigError(
            "a cassette changes nothing and needs no server: leave out worlds= and reset=, or the cassette"
        )
    server: Server | None = None
    queue = ResetQueue(reset) if reset is not None else None

    def tools_changed() -> None:
        if server is not None:  # before that nobody has listed them
            server.tools_changed()

    async with AsyncExitStack() as stack:
        timeouts = options.start_timeout, options.timeout
        world = pool = None
        if options.worlds is not None:
            world = World(options.worlds, options.observers)
            pool = Pool(world, check_target(target), timeouts, tools_changed)
            stack.push_async_callback(asyncio.to_thread, world.close)  # also if it is cancelled while it opens
            await asyncio.to_thread(world.open)
            stack.push_async_callback(pool.close)
            if note := unnamed_world(check_target(target), world):
                world.notes.append(note)
                log.warning("%s", note)

        def connection(rollout: Scope | None) -> Source:
            own = (
                InWorld(pool, rollout, shares=options.isolation == "shared")
                if pool
                else Reopening(target, timeouts, tools_changed)
            )
            return AfterReset(own, queue, rollout.rollout_id) if queue and rollout else own

        source: Source = Live(connection, "session" if world or queue else options.isolation)
        if secrets := secrets_of(target):
            source = MaskedSource(source, secrets)
        if cassette:
            source = cassette.over(source)
        stack.push_async_callback(source.close)
        info = await source.request("initialize", {})
        server = Server(source, info, options.max_result, world, serial=queue is not None)
        yield server


@asynccontextmanager
async def connection_of(server: Server | str | Sequence[str], options: WorldOptions) -> AsyncIterator[Server]:
    """A connected server as it is; any other one is connected until the block is left.

    Args:
        server: A connected server, or its command or URL.
        options: What the server works on. A connected server has it already.

    Raises:
        ConfigError: There are options for a connected server.
        MCPError: The server cannot be started or reached.
    """
    if not isinstance(server, Server):
        async with connect(server, worlds=options.worlds, reset=options.reset) as live:
            yield live
        return
    options.check_unused()
    yield server
