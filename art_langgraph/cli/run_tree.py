"""Prints a recorded run: its facts, the tree of its nodes with their calls, and the messages of its model calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.messages import HumanMessage, convert_to_messages
from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from art_langgraph.cli.printing import cell, shorten
from art_langgraph.messages import plain
from art_langgraph.trajectory import Scenario, Trajectory
from trainer_server.common.run_tree import CallItem, Item, NodeItem, ToolItem, call_line, calls
from trainer_server.wire.text import beginning, visible

_LINE_LENGTH = 140
"""Characters of an answer or a result in the tree."""


def question(scenario: Scenario) -> str:
    """What the graph was asked: the last message of a user, or the whole input as JSON."""
    value = plain(scenario.input)
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.get("messages"):
        try:
            messages = convert_to_messages(value["messages"])
        except (ValueError, NotImplementedError, TypeError, KeyError):  # a state with messages of another kind
            messages = []
        if questions := [message for message in messages if isinstance(message, HumanMessage)]:
            return str(questions[-1].text)
    return json.dumps(value, ensure_ascii=False)


def answered_by(trajectory: Trajectory) -> list[str]:
    """Policy versions that answered, as `agent@3`, and the names of other models."""
    answers = [call for call in trajectory.completions if call.model]
    names = (f"{call.policy}@{call.version}" if call.version is not None else str(call.model) for call in answers)
    return list(dict.fromkeys(names))


def facts(trajectory: Trajectory) -> dict[str, Any]:
    """The facts of a run in a list."""
    return {
        "id": trajectory.id,
        "started": trajectory.started,
        "seconds": trajectory.seconds,
        "graph": trajectory.graph_id,
        "thread": trajectory.thread_id,
        "run": trajectory.run_id,
        "scenario": trajectory.scenario.id,
        "versions": answered_by(trajectory),
        "question": question(trajectory.scenario),
        "nodes": len(trajectory.nodes),
        "completions": len(trajectory.completions),
        "tool_calls": len(trajectory.tool_calls),
        "reward": trajectory.reward,
        "error": trajectory.error,
    }


def tree(trajectory: Trajectory, items: Sequence[Item], *, drift: str | None = None) -> Tree:
    """A run as a tree: calls under the runs of nodes that made them, each level in the order of time.

    Args:
        trajectory: The run.
        items: Its tree, of `run_tree.tree`.
        drift: Its prefix drift, in words; None: not shown.
    """
    reward = "no reward" if trajectory.reward is None else f"reward {cell(trajectory.reward)}"
    about = [trajectory.graph_id or "", reward, f"{trajectory.seconds:.2f} s", trajectory.reward_error or ""]
    root = Tree(f"[bold]{_escape_text(trajectory.id)}[/bold] {_escape_text(' · '.join(filter(None, about)))}")
    root.add(_escape_text(f"question: {shorten(question(trajectory.scenario), 400)}"))
    if models := answered_by(trajectory):
        root.add(_escape_text(f"answered by: {', '.join(models)}"))
    if drift:
        root.add(_escape_text(f"prefix drift: {drift}"))
    if trajectory.error:
        root.add(f"[red]{_escape_text(trajectory.error)}[/red]")
    if trajectory.reward_reason:
        root.add(_escape_text(f"judged: {shorten(trajectory.reward_reason, 400)}"))
    if trajectory.node_rewards:
        by_node = " · ".join(f"{pattern} {cell(value)}" for pattern, value in trajectory.node_rewards.items())
        root.add(_escape_text(f"rewards by node: {by_node}"))
    if trajectory.metrics:
        root.add(_escape_text(" · ".join(f"{name} {value:.3f}" for name, value in trajectory.metrics.items())))
    numbers = {id(item): number for number, (_, item) in enumerate(calls(items), start=1)}
    _add(root, items, numbers)
    return root


def as_json(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The tree of a run for programs: `kind` is `node`, with what is `inside`, `call` or `tool`."""
    entries: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, NodeItem):
            more = {"kind": "node", "label": item.label, "attempt_number": item.attempt, "attempts": item.attempts}
            entries.append({**more, **item.node.model_dump(mode="json"), "inside": as_json(item.inside)})
        elif isinstance(item, CallItem):
            tokens = len(item.row.token_ids) if item.row else None
            more = {"kind": "call", "tokens": tokens, "known_to_client": item.reported}
            entries.append({**more, **item.call.model_dump(mode="json")})
        else:
            entries.append({"kind": "tool", **item.tool.model_dump(mode="json")})
    return entries


def words_of(message: dict[str, Any] | None) -> str:
    """What a message says, with its calls of tools."""
    if not message:
        return ""
    content = message.get("content")
    words = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False) if content else ""
    return " ".join([words, *(f"→ {call_line(call)}" for call in message.get("tool_calls") or ())]).strip()


def model_of(item: CallItem) -> str:
    """Who answered, as `agent@3`."""
    name, version = item.call.model or "model", item.call.version
    return name if version is None or "@" in name else f"{name}@{version}"


def _escape_text(text: str) -> str:
    return escape(visible(text))


def _add(branch: Tree, items: Sequence[Item], numbers: dict[int, int]) -> None:
    for item in items:
        if isinstance(item, NodeItem):
            _add(branch.add(_node(item)), item.inside, numbers)
        elif isinstance(item, CallItem):
            branch.add(_call(item, numbers[id(item)]))
        else:
            branch.add(_tool(item))


def _node(item: NodeItem) -> str:
    node = item.node
    notes = [
        f"agent {node.agent}" if node.agent and node.agent != item.label else "",
        "" if node.step is None else f"step {node.step}",
        "" if node.branch is None else f"branch {node.branch}",
        f"attempt {item.attempt} of {item.attempts}" if item.attempts > 1 else "",
        f"{node.seconds:.2f} s",
        "" if item.inside else "no model, tool or inner node",
    ]
    ends = " [yellow]interrupted[/yellow]" if node.interrupted else ""
    ends += f" [red]{_escape_text(beginning(node.error, 400))}[/red]" if node.error else ""
    return f"[cyan]{_escape_text(item.label)}[/cyan] [dim]{_escape_text(' · '.join(filter(None, notes)))}[/dim]{ends}"


def _call(item: CallItem, number: int) -> str:
    call = item.call
    notes = [
        model_of(item),
        f"{len(item.row.token_ids)} tokens" if item.row else "another server answered" if call.id is None else "",
        f"{call.seconds:.2f} s" if call.seconds else "",
        f"{'left' if call.superseded == 'fork' else 'repeated'}: {call.superseded}" if call.superseded else "",
        "cached" if call.cached else "",
        "" if call.reward is None else f"reward {cell(call.reward)}",
        "" if item.reported else "only the ledger knows of it",
    ]
    error = f" [red]{_escape_text(beginning(call.error, 400))}[/red]" if call.error else ""
    error += f" [yellow]{_escape_text(item.text_call)}[/yellow]" if item.text_call else ""
    words = shorten(words_of(call.message), _LINE_LENGTH)
    head = f"[magenta]●[/magenta] [bold]{number}[/bold] [dim]{_escape_text(' · '.join(filter(None, notes)))}[/dim]"
    return f"{head}{error} {_escape_text(words)}".rstrip()


def _tool(item: ToolItem) -> str:
    tool = item.tool
    mark = "[red]✗[/red]" if tool.is_error or tool.failure else "[green]✓[/green]"
    server = " ".join(filter(None, (tool.server, tool.server_version)))
    kind = f"MCP {tool.tool}" if tool.server else tool.tool
    notes = [f"of {server}" if server else "", f"{tool.seconds:.2f} s" if tool.seconds else ""]
    notes += [f"no answer: {tool.failure}" if tool.failure else ""]
    arguments = json.dumps(tool.arguments, ensure_ascii=False)
    result = "no result is known" if tool.result is None else tool.result
    line = beginning(f"{kind}({arguments})", 2 * _LINE_LENGTH)
    about = _escape_text(" · ".join(filter(None, notes)))
    return f"{mark} {_escape_text(line)} [dim]{about}[/dim] → {_escape_text(shorten(result, _LINE_LENGTH))}"


_STYLES = {"user": "green", "assistant": "magenta", "tool": "cyan", "system": "yellow", "developer": "yellow"}

Turn = tuple[str, str]
"""Role and words of a message."""


def messages(items: Sequence[Item], *, most: int | None) -> Iterator[Text]:
    """The lines of all model calls, in the order of the tree and with its numbers.

    Args:
        items: The tree of a run.
        most: Characters of a message; None: all.
    """
    printed_calls: list[tuple[int, list[Turn]]] = []
    for number, (path, item) in enumerate(calls(items), start=1):
        turns = [_turn(message) for message in _request_messages(item)]
        before, common = _earlier(printed_calls, turns)
        answer = words_of(item.call.message or (item.row.message if item.row else None))
        where = " · ".join(filter(None, (path, model_of(item), item.call.id)))
        goes_on = f"  goes on from {before}" if before else ""
        title = f"\n[bold]{number}[/bold] [dim]{escape(visible(where))}{goes_on}[/dim]"
        yield Text.from_markup(title, emoji=False)
        for turn in turns[common:]:
            yield _line(turn, most)
        if item.call.error:
            yield Text(f"  {visible(item.call.error)}", style="red")
        if answer:
            yield _line(("assistant", answer), most)
        printed_calls.append((number, [*turns, ("assistant", answer)]))


def _request_messages(item: CallItem) -> list[dict[str, Any]]:
    """The messages of a request: from the client, else from the ledger."""
    entries = item.call.messages or (item.row.request.get("messages") if item.row else None) or []
    return [message for message in entries if isinstance(message, dict)]


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
    text = visible(words if most is None else beginning(words, most))
    line = Text(f"  {role:<9} ", style=_STYLES.get(role, ""))
    return line.append(text.replace("\n", "\n            "), style="default")
