"""Prints a recorded run: its question, and a tree of nodes, messages and tools."""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import HumanMessage, convert_to_messages
from rich.markup import escape
from rich.tree import Tree

from art_langgraph.cli.printing.lists import cell, shortened
from art_langgraph.messages import plain
from art_langgraph.trajectory import CompletionCall, Scenario, ToolCall, Trajectory
from trainer_server.wire.text import beginning


def question(scenario: Scenario) -> str:
    """What the graph was asked: the last message of a user, or the whole input as JSON."""
    given = plain(scenario.input)
    if isinstance(given, str):
        return given
    if isinstance(given, dict) and given.get("messages"):
        try:
            messages = convert_to_messages(given["messages"])
        except (ValueError, NotImplementedError, TypeError, KeyError):  # a state with messages of another kind
            messages = []
        if asked := [message for message in messages if isinstance(message, HumanMessage)]:
            return str(asked[-1].text)
    return json.dumps(given, ensure_ascii=False)


def answered_by(trajectory: Trajectory) -> list[str]:
    """Policy versions that answered, as `agent@3`, and the names of other models."""
    calls = [call for call in trajectory.completions if call.model]
    names = (f"{call.policy}@{call.version}" if call.version is not None else str(call.model) for call in calls)
    return list(dict.fromkeys(names))


def tree(trajectory: Trajectory, *, drift: str | None = None) -> Tree:
    """A run as a tree: calls under the runs of nodes that made them, in order of time.

    Args:
        trajectory: The run.
        drift: Its prefix drift, in words; None: not shown.
    """
    reward = "no reward" if trajectory.reward is None else f"reward {cell(trajectory.reward)}"
    facts = [trajectory.graph_id or "", reward, f"{trajectory.seconds:.2f} s", trajectory.reward_error or ""]
    root = Tree(f"[bold]{escape(trajectory.id)}[/bold] {escape(' · '.join(filter(None, facts)))}")
    root.add(escape(f"question: {shortened(question(trajectory.scenario), 400)}"))
    if models := answered_by(trajectory):
        root.add(escape(f"answered by: {', '.join(models)}"))
    if drift:
        root.add(escape(f"prefix drift: {drift}"))
    if trajectory.error:
        root.add(f"[red]{escape(trajectory.error)}[/red]")
    if trajectory.reward_reason:
        root.add(escape(f"judged: {shortened(trajectory.reward_reason, 400)}"))
    if trajectory.node_rewards:
        by_node = " · ".join(f"{pattern} {cell(value)}" for pattern, value in trajectory.node_rewards.items())
        root.add(escape(f"rewards by node: {by_node}"))
    if trajectory.metrics:
        root.add(escape(" · ".join(f"{name} {value:.3f}" for name, value in trajectory.metrics.items())))
    branches: dict[str | None, Tree] = {None: root}
    events: list[Any] = sorted(
        [*trajectory.nodes, *trajectory.completions, *trajectory.tool_calls], key=lambda event: event.started
    )
    for event in events:
        if isinstance(event, CompletionCall):
            _add_completion(branches.get(event.attempt, root), event)
        elif isinstance(event, ToolCall):
            mark = "[red]✗[/red]" if event.is_error else "[green]✓[/green]"
            where = f" ({event.server})" if event.server else ""
            text = f"{event.tool}({json.dumps(event.arguments, ensure_ascii=False)}){where} → {event.result or ''}"
            branches.get(event.attempt, root).add(f"{mark} {escape(beginning(text, 400))}")
        else:
            ends = " [red]" + escape(event.error) + "[/red]" if event.error else ""
            ends += " [yellow]interrupted[/yellow]" if event.interrupted else ""
            branch = "" if event.branch is None else f" #{event.branch}"
            label = f"[cyan]{escape(event.node or '')}{branch}[/cyan] {event.seconds:.2f} s{ends}"
            branches[event.attempt] = branches.get(event.parent, root).add(label)
    return root


def _add_completion(branch: Tree, call: CompletionCall) -> None:
    notes = [call.model or "", call.id or "not ours", f"superseded by {call.superseded}" if call.superseded else ""]
    notes += ["cached" if call.cached else "", cell(call.reward), call.error or ""]
    node = branch.add(f"[magenta]●[/magenta] [dim]{escape(' · '.join(filter(None, notes)))}[/dim]")
    for message in call.messages[-2:]:
        line = f"{message.get('role')}: {_message_text(message)}"
        node.add(f"[dim]{escape(beginning(line, 400))}[/dim]")
    if call.message:
        node.add(escape(beginning(f"assistant: {_message_text(call.message)}", 800)))


def _message_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    words = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False) if content else ""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return " ".join([words, *(f"{call['name']}({call['arguments']})" for call in calls)]).strip()
