"""What a server wrote to its stderr during a call, for errors that say nothing: some SDKs keep the exception there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

SERVER_LOG = "art-langgraph/server-log"
"""Key of `_meta` in an answer to `tools/call`: the end of what the server wrote to its stderr since the call began."""

MAX_LINES = 3
"""Messages that are kept, the last ones."""

MAX_CHARACTERS = 300
"""Characters that are kept."""

_MAX_WIDTH = 4_000
"""Characters of a message that are read."""

_MAX_LINE = 500
"""Characters of a line that tell whether it is one of a trace."""

_SAYS_NOTHING = frozenset(
    re.findall(
        r"\w+",
        """
        a an and as at been by call called calling code could critical detail details due during error errors exception
        execute executed executing execution exit fail failed failing failure fatal for function handle handled
        handler handling has have in info internal is it mcp method not of occurred on please process processing raise
        raised raising request running runtime see server something the this to tool trace traceback try unexpected
        unhandled unknown warning was went while with wrong
        """,
    )
)
"""Words that an error without a reason is made of."""

_WORD = re.compile(r"[^\W\d_]+")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PLACE = re.compile(r"\b[\w./\\-]+\.\w{1,4}:\d+(?::\d+)?")
"""A file with the number of a line: where a logger was called, and no reason."""
_COLORS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_GROUP = re.compile(r"^(\s*)[|+](?=[\s+-]|$)(?!.*[|+]$)")
"""What stands before the lines of an exception group."""
_TRACE = re.compile(r"(?:Exception Group )?Traceback \(most recent call last")
_FRAME = re.compile(
    r"""[│╭╰].* | \|.*\| | \+-.*-\+ | File\ ["'].*,\ line\ \d+.* | at\ \S.* | (?:/|[A-Za-z]:)\S+:\d+(?:\s.*)?"""
    r""" | goroutine\ \d+.* | [\w.]+\([^()]*\) | [~^=\s]+ | [-+=][-+=\s\d]* | \.\.\.\ \d+\ more""",
    re.VERBOSE,
)
"""A line of a trace that says where something happened, as Python, Rich, Node, Java and Go write it."""
_PLACES = "\0"
"""Stands for a line of a trace."""
_CHAIN = re.compile(r"The above exception was|During handling of the above")


def says_nothing(text: str, tool: str = "") -> bool:
    """Whether a text is no reason: without the name of the tool it has only words such as error, executing, failed.

    Numbers are no words: an error that is only a code has no reason either.

    Args:
        text: The text of an error, or a line of a log.
        tool: The name of the tool that gave it.
    """
    rest = _PLACE.sub(" ", text[:_MAX_WIDTH])
    if tool:
        rest = rest.replace(tool, " ")
    return all(word.casefold() in _SAYS_NOTHING for word in _WORD.findall(_HUMP.sub(" ", rest)))


def last_messages(text: str, tool: str = "", mask: Callable[[str], str] = str) -> str:
    """The last messages in what a server wrote, on one line. Empty: none has a reason.

    Where there are traces, these are the messages at their beginnings and ends: the exceptions.

    Args:
        text: What the server wrote to its stderr.
        tool: The name of the tool that was called.
        mask: Hides secrets in a whole message, before it is cut: half a secret is not known as one.
    """
    of_traces: list[str] = []
    others: list[str] = []
    for message, in_trace in _messages(_COLORS.sub("", text)):
        if not (says_nothing(message, tool) or _CHAIN.match(message)):
            (of_traces if in_trace else others).append(message)
    last = [_shorten(mask(message)) for message in list(dict.fromkeys(of_traces or others))[-MAX_LINES:]]
    while len("; ".join(last)) > MAX_CHARACTERS:
        del last[0]
    return "; ".join(filter(None, last))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def _messages(text: str) -> Iterator[tuple[str, bool]]:
    """The messages of a log, each with whether it stands beside a trace: such a one is an exception.

    A line that is indented goes on with the message before it: loggers wrap long ones.
    """
    parts: list[str] = []  # a blank line is an empty one, a line of a trace is _PLACES
    indent, trace_indent, before = 0, -1, ""
    lines = text.splitlines()
    width = max((len(line.rstrip()) for line in lines if line[-1:].isspace()), default=0)
    for raw in lines:
        line = _GROUP.sub(r"\1 ", raw.rstrip())
        words, own = line.strip(), len(line) - len(line.lstrip())
        if words and own <= trace_indent:
            trace_indent = -1
        is_trace = _TRACE.match(words) is not None
        if is_trace:
            trace_indent = own
        if is_trace or 0 <= trace_indent < own or (words and _FRAME.fullmatch(words[:_MAX_LINE])):
            parts.append(_PLACES)
        elif words and own and own >= indent and parts and parts[-1] not in ("", _PLACES):
            # A word alone on a line of full width goes on in the next one: the logger has broken it.
            broken = before[-1:].isspace() and len(before.rstrip()) == width and len(before.split()) == 1
            gap = "" if broken else " "
            parts[-1] += gap + words
        else:
            parts.append(words)
            indent = own
        before = raw
    for at, part in enumerate(parts):
        if part not in ("", _PLACES):
            yield _cut(part), _PLACES in parts[max(0, at - 1) : at + 2]


def _cut(text: str) -> str:
    """The text, or as many of its first words as _MAX_WIDTH characters have: never a part of a word."""
    return text if len(text) <= _MAX_WIDTH else " ".join(text[:_MAX_WIDTH].split()[:-1])
