"""Prints the messages of a run's model calls: of a conversation that goes on, only what is new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.markup import escape
from rich.text import Text

from art_langgraph.cli.printing.tree import model_of, words_of
from trainer_server.common.run_tree import CallItem, Item, calls
from trainer_server.wire.text import beginning, visible

_STYLES = {"user": "green", "assistant": "magenta", "tool": "cyan", "system": "yellow", "developer": "yellow"}

Turn = tuple[str, str]
"""Role and words of a message."""


def messages(items: Sequence[Item], *, most: int | None) -> Iterator[Text]:
    """The lines of all model calls, in the order of the tree and with its numbers.

    Args:
        items: The tree of a run.
        most: Characters of a message; None: all.
    """
    told: list[tuple[int, list[Turn]]] = []
    for number, (path, item) in enumerate(calls(items), start=1):
        asked = [_turn(message) for message in _request_messages(item)]
        before, known = _earlier(told, asked)
        answer = words_of(item.call.message or (item.row.message if item.row else None))
        where = " · ".join(filter(None, (path, model_of(item), item.call.id)))
        goes_on = f"  goes on from {before}" if before else ""
        yield Text.from_markup(f"\n[bold]{number}[/bold] [dim]{escape(visible(where))}{goes_on}[/dim]")
        for turn in asked[known:]:
            yield _line(turn, most)
        if item.call.error:
            yield Text(f"  {visible(item.call.error)}", style="red")
        if answer:
            yield _line(("assistant", answer), most)
        told.append((number, [*asked, ("assistant", answer)]))


def _request_messages(item: CallItem) -> list[dict[str, Any]]:
    """The messages of a request: from the client, else from the ledger."""
    given = item.call.messages or (item.row.request.get("messages") if item.row else None) or []
    return [message for message in given if isinstance(message, dict)]


def _turn(message: dict[str, Any]) -> Turn:
    return str(message.get("role", "")), words_of(message)


def _earlier(printed_calls: list[tuple[int, list[Turn]]], request_turns: list[Turn]) -> tuple[int | None, int]:
    """The call that a conversation goes on from, and how many of its messages were printed there; (None, 0): none."""
    for number, turns in reversed(printed_calls):
        if len(turns) <= len(request_turns) and request_turns[: len(turns)] == turns:
            return number, len(turns)
    return None, 0


def _line(turn: Turn, most: int | None) -> Text:
    role, words = turn
    said = visible(words if most is None else beginning(words, most))
    line = Text(f"  {role:<9} ", style=_STYLES.get(role, ""))
    return line.append(said.replace("\n", "\n            "), style="default")
