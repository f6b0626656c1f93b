"""Leaves out of a server's list the tools that nobody can read. Otherwise one of them costs all the others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Self, cast
from urllib.parse import unquote

import anyio
import mcp.types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

MAX_DEPTH = 100
"""Maximum number of levels of a schema, with what its references lead to in their place."""

MAX_VALUES = 100_000
"""Maximum number of values of a schema, counted in the same way."""

LEFT_OUT = "art-langgraph/left-out"
"""Key of `_meta` in an answer to `tools/list`: the tools that were left out by name, and why."""

_LEVELS = MAX_DEPTH + 20
"""Levels of a message whose JSON is nested too deeply to be parsed; what is below is left out."""
_DIGITS = 4000
"""Digits of the number of an item at most: Python reads no more of them."""
_MAX_NAME = 200
"""Maximum number of characters of a name or reason."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


class ToolFilter:
    """A stream of a server's messages. Its lists of tools have those that can be read.

    It is the only place where this can be done: the SDK refuses a whole list for one tool, and lists the tools on its
    own as well.

    Args:
        stream: The stream of a transport of SDK 1 or 2.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._version: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        """The next message, or the exception of one that cannot be parsed."""
        return self._filter_message(await self._stream.receive())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stream.aclose()

    def _filter_message(self, item: Any) -> Any:
        whole = _readable_answer(item) or item if isinstance(item, ValidationError) else item
        message = getattr(whole, "message", None)
        answer: Any = getattr(message, "root", message)  # SDK 1 wraps messages
        result = getattr(answer, "result", None)
        if not isinstance(result, dict):
            return whole
        self._version = result.get("protocolVersion", self._version)
        if not isinstance(result.get("tools"), list) or "content" in result:
            return whole
        tools, left_out = [], {}
        for at, tool in enumerate(result["tools"]):
            reason = unreadable(tool) or self._find_violation(result, tool)
            if reason is None:
                tools.append(tool)
            else:
                left_out[name_of(tool, at)] = reason[:_MAX_NAME]
        if left_out:
            meta = result.get("_meta")
            meta = {**(meta if isinstance(meta, dict) else {}), LEFT_OUT: left_out}
            answer.result = {**result, "tools": tools, "_meta": meta}
        return whole

    def _find_violation(self, result: Mapping[str, Any], tool: Any) -> str | None:
        """Where a tool breaks the protocol, as the SDK will see it. None: it does not."""
        try:
            check_tool({**result, "tools": [tool]}, self._version)
        except ValidationError as error:
            own = [problem for problem in error.errors() if problem["loc"][:2] == ("tools", 0)]
            return f"it breaks the protocol: {place_of(own[0], skip=2)}" if own else None
        return None


def check_tool(result: Mapping[str, Any], version: str | None) -> None:
    """Checks an answer to `tools/list` as the installed SDK does.

    Args:
        result: The answer.
        version: Version of the protocol that was agreed upon; None: not known.

    Raises:
        ValidationError: It breaks the protocol.
    """
    mcp.types.ListToolsResult.model_validate(result)
    try:
        from mcp_types.methods import validate_server_result
        from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
    except ImportError:  # SDK 1
        return
    latest = LATEST_MODERN_VERSION if "resultType" in result else LATEST_HANDSHAKE_VERSION
    try:
        validate_server_result("tools/list", version or latest, result)
    except ValidationError:
        raise
    except (KeyError, ValueError):  # a version that the SDK does not know: it does not check either
        pass


def place_of(problem: Mapping[str, Any], skip: int = 0) -> str:
    """A problem that pydantic found, with its place: "inputSchema.type: Field required".

    Args:
        problem: One of `ValidationError.errors()`.
        skip: How many steps of the place to leave out.
    """
    return f"{'.'.join(map(str, problem['loc'][skip:]))}: {problem['msg']}".removeprefix(": ")


def name_of(tool: Any, at: int) -> str:
    """A tool's name for messages. at: its number in the list, from 0."""
    name = tool.get("name") if isinstance(tool, Mapping) else None
    return name[:_MAX_NAME] if isinstance(name, str) and name else f"number {at} (counted from 0)"


def unreadable(tool: Any) -> str | None:
    """Why the schemas of a tool cannot be read, whatever reads them: they have no end, or too much in them.

    A reference counts as what it leads to, but not within itself. Those who write references out, such as LangChain,
    get this much.

    Args:
        tool: The tool as the protocol's JSON.

    Returns:
        The reason; None: they can be read.
    """
    for field in ("inputSchema", "outputSchema"):
        if isinstance(tool, Mapping) and (reason := _excess(tool.get(field))):
            return f"{field} {reason}"
    return None


def _excess(schema: Any) -> str | None:
    values = 0
    # What is left to look at: a value, its level, and the references that it lies within. None: they are not followed.
    rest: list[tuple[Any, int, frozenset[str] | None]] = [(schema, 1, frozenset())]
    while rest:
        value, level, within = rest.pop()
        values += 1
        if values > MAX_VALUES:
            return f"has more than {MAX_VALUES:,} values, where each reference counts as what it leads to"
        if level > MAX_DEPTH:
            return f"is nested more than {MAX_DEPTH} levels deep, where each reference counts as what it leads to"
        if isinstance(value, Mapping):
            rest += ((inner, level + 1, None if key == "$defs" else within) for key, inner in value.items())
            reference = value.get("$ref")
            if isinstance(reference, str) and within is not None and reference not in within:
                target = _target(reference, schema)
                rest.append((target, level + 1, within | {reference}))
        elif isinstance(value, list):
            rest += ((inner, level + 1, within) for inner in value)
    return None


def _target(reference: str, schema: Any) -> Any:
    """What a reference leads to; None where it leads nowhere in the schema. Its steps may be numbers of items, and
    escaped or not: readers differ."""
    root, *steps = reference.split("/")
    target = schema if root == "#" else None
    for step in steps:
        if isinstance(target, list):
            at = int(step) if step.isdecimal() and len(step) <= _DIGITS else len(target)
            target = target[at] if at < len(target) else None
        elif isinstance(target, Mapping):
            plain = unquote(step).replace("~1", "/").replace("~0", "~")
            target = target.get(step, target.get(plain))
        else:
            return None
    return target


def _readable_answer(error: ValidationError) -> SessionMessage | None:
    """What stands for an answer that cannot be parsed. None: the message is no answer.

    A list of tools stands for itself: tools that are nested too deeply have a part of their schema, which is still
    too deep to be read. For any other answer there is an error, since its request would wait for it.
    """
    text = error.errors()[0]["input"]
    if not isinstance(text, str):
        return None
    try:
        fields = json.loads(shallow := "".join(_shallow(text)))
    except ValueError:
        return None
    if not isinstance(fields, dict) or not fields.keys() & {"result", "error"}:
        return None
    result = fields.get("result")
    if not isinstance(result, dict) or not isinstance(result.get("tools"), list):
        reason = "breaks the protocol" if shallow == text else f"is nested more than {_LEVELS} levels deep"
        reason = f"the answer cannot be read: it {reason}"
        fields = {"jsonrpc": "2.0", "id": fields.get("id"), "error": {"code": mcp.types.PARSE_ERROR, "message": reason}}
    kind = mcp.types.JSONRPCResponse if "result" in fields else mcp.types.JSONRPCError
    try:
        message: Any = kind.model_validate(fields)
        if hasattr(wrapper := mcp.types.JSONRPCMessage, "model_validate"):  # SDK 1
            message = cast(Any, wrapper).model_validate(fields)
    except ValidationError:
        return None
    return SessionMessage(message)


def _shallow(text: str) -> Iterator[str]:
    """The parts of a JSON text without what is below _LEVELS, in place of which is null."""
    level = begin = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            level += 1
            if level == _LEVELS + 1:
                yield text[begin : token.start()]
                yield "null"
        elif token[0] in "]}":
            level -= 1
            if level == _LEVELS:
                begin = token.end()
    if level <= _LEVELS:
        yield text[begin:]
