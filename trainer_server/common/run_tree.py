"""The tree of a run: nodes of graphs inside of one another, with their attempts, model calls and tool calls."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainer_server.common.text_call import TEXT_CALL, text_call
from trainer_server.wire import Completion, CompletionStatus, RunTrace
from trainer_server.wire.rollouts import TraceCall, TraceNode, TraceTool

_DEEPEST = 40
"""Levels of a tree that are shown. What is deeper stands at its root."""


@dataclass(slots=True)
class CallItem:
    """A call of a chat model."""

    call: TraceCall
    row: Completion | None
    """Its row in the ledger; None: there is none."""
    reported: bool = True
    """Whether the client reported the call. The ledger has more than the client where a program calls by itself."""

    @property
    def start_time(self) -> float:
        return self.call.started

    @property
    def text_call(self) -> str | None:
        """The sentence that says that the answer looks like a tool call which the parser did not take; None: it does
        not, or its row is gone, which has the tools of the request."""
        name = text_call(self.call.message or self.row.message, self.row.request) if self.row else None
        return TEXT_CALL.format(name=name) if name else None


@dataclass(slots=True)
class ToolItem:
    """A tool call."""

    tool: TraceTool

    @property
    def start_time(self) -> float:
        return self.tool.started


@dataclass(slots=True)
class NodeItem:
    """A run of a node, and what happened in it."""

    node: TraceNode
    attempt: int = 1
    """Which attempt at its work it is."""
    attempts: int = 1
    inside: list[Item] = field(default_factory=list)

    @property
    def start_time(self) -> float:
        return self.node.started

    @property
    def label(self) -> str:
        """The node's name."""
        return self.node.node or (self.node.path[-1] if self.node.path else "node")


Item = NodeItem | CallItem | ToolItem


def tree(trace: RunTrace | None, completions: Sequence[Completion]) -> list[Item]:
    """The items at the root of a run, each level in the order of its start.

    Args:
        trace: The client's report; None: there is none. Then the tree is the list of completions.
        completions: The ledger's rows of the run.
    """
    rows = {row.id: row for row in completions}
    root: list[Item] = []
    nodes = _nodes(trace)
    for item in nodes.values():
        _children(root, nodes, item.node.parent).append(item)
    reported_ids: set[str | None] = set()
    for call in trace.completions if trace else ():
        reported_ids.add(call.id)
        where = call.attempt if call.attempt in nodes else call.parent
        _children(root, nodes, where).append(CallItem(call, rows.get(call.id or "")))
    for tool in trace.tool_calls if trace else ():
        where = tool.attempt if tool.attempt in nodes else tool.parent
        _children(root, nodes, where).append(ToolItem(tool))
    root += [CallItem(_call_of(row), row, reported=trace is None) for row in completions if row.id not in reported_ids]
    for inside in (root, *(item.inside for item in nodes.values())):
        inside.sort(key=lambda item: item.start_time)
    return root


def calls(items: Sequence[Item]) -> Iterator[tuple[str, CallItem]]:
    """All model calls of a tree with the path of their nodes, in the order of the tree."""

    def walk(inside: Sequence[Item], path: str) -> Iterator[tuple[str, CallItem]]:
        for item in inside:
            if isinstance(item, NodeItem):
                yield from walk(item.inside, f"{path}/{item.label}" if path else item.label)
            elif isinstance(item, CallItem):
                yield path, item

    return walk(items, "")


def first_items(items: Sequence[Item], most: int) -> tuple[list[Item], int]:
    """The beginning of a tree.

    Args:
        items: At its root.
        most: Items on all levels together.

    Returns:
        The first items, in the order of the tree, and how many were left out.
    """
    rest = most

    def cut(inside: Sequence[Item]) -> list[Item]:
        nonlocal rest
        items: list[Item] = []
        for item in inside:
            rest -= 1
            if isinstance(item, NodeItem):
                above = rest >= 0
                below = cut(item.inside)
                if above:
                    items.append(replace(item, inside=below))
            elif rest >= 0:
                items.append(item)
        return items

    return cut(items), max(0, -rest)


def call_line(call: Any) -> str:
    """A tool call of a message on one line, `get_time({"city": "Turin"})`: its arguments are as the model wrote them.
    What has another form than a tool call of a chat completion is JSON."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return json.dumps(call, ensure_ascii=False, default=str)
    return call_text(str(function.get("name", "tool")), function.get("arguments", ""))


def call_text(tool: str, arguments: Any) -> str:
    """The call of a tool on one line. arguments: a text as it is, anything else as JSON."""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    return f"{tool}({arguments})"


def _nodes(trace: RunTrace | None) -> dict[str | None, NodeItem]:
    """The runs of nodes by their ids, with the numbers of their attempts; oldest first."""
    if trace is None:
        return {}
    timeline = sorted(trace.nodes, key=lambda node: node.started)
    total = Counter(node.namespace for node in timeline)
    counts: defaultdict[str, int] = defaultdict(int)
    items: dict[str | None, NodeItem] = {}
    for place, node in enumerate(timeline):
        counts[node.namespace] += 1
        key = node.attempt if node.attempt is not None and node.attempt not in items else f"\0{place}"
        items[key] = NodeItem(node, counts[node.namespace], total[node.namespace])
    for item in items.values():  # what is its own ancestor, or too deep, stands at the root
        above, depth = item.node.parent, 0
        while above in items and depth <= _DEEPEST:
            above, depth = items[above].node.parent, depth + 1
        if depth > _DEEPEST:
            item.node = item.node.model_copy(update={"parent": None})
    return items


def _children(root: list[Item], nodes: dict[str | None, NodeItem], parent: str | None) -> list[Item]:
    return nodes[parent].inside if parent is not None and parent in nodes else root


def _call_of(row: Completion) -> TraceCall:
    """A call of which only the ledger has a record."""
    error = None if row.status is CompletionStatus.complete else f"the answer is {row.status}"
    if row.error:
        error = f"{error}: {row.error}"
    model = row.model or row.policy or row.base_model
    return TraceCall(id=row.id, model=model, version=row.version, message=row.message, error=error, started=row.created)
