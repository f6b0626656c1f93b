"""A trajectory as a tree of spans, which is what tracing systems have: a run, its nodes, model calls and tool calls."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from art_langgraph.messages import map_texts, plain
from art_langgraph.trajectory import CompletionCall, NodeRun, Place, ToolCall, Trajectory
from trainer_server.wire.text import beginning

MOST_TEXT = 20_000
"""Characters of a text; tracing systems refuse spans beyond a few megabytes."""
_NAMES = uuid.UUID("5f1f3c1e-7a0b-4f67-9d57-0b6f2a0c8d11")
"""The namespace of our ids."""

SpanKind = Literal["run", "node", "model", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that a run did.

    Args:
        id: The same each time that the same trajectory is turned into spans.
        parent: The span around it; None: this is the run.
        kind: What it is.
        name: Of the graph, the node, the model or the tool.
        start_time: Unix time, seconds.
        seconds: How long it took.
        input: Its input, as JSON.
        output: What it gave, as JSON; None: nothing.
        error: What it raised.
        facts: Whatever else is known of it, as JSON.
    """

    id: uuid.UUID
    parent: uuid.UUID | None
    kind: SpanKind
    name: str
    start_time: float
    seconds: float
    input: Any = None
    output: Any = None
    error: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def span_id(*names: object) -> uuid.UUID:
    """The id of what these names name."""
    return uuid.uuid5(_NAMES, "\n".join(map(str, names)))


def spans(run: Trajectory) -> list[Span]:
    """The spans of a run, each after the one around it.

    Args:
        run: A run that has ended.
    """
    root = Span(
        id=span_id(run.id),
        parent=None,
        kind="run",
        name=run.graph_id or "agent",
        start_time=run.started,
        seconds=_length(run),
        input=_shorten_data(run.scenario.input),
        output=_shorten_data(run.output),
        error=run.error,
        facts={
            "trajectory": run.id,
            "rollout": run.rollout_id,
            "scenario": run.scenario.id,
            "versions": run.versions,
            "evaluation": run.evaluation,
            "temperature": run.temperature,
            "metadata": _shorten_data(run.metadata),
        },
    )
    spans = [root]
    ids = {node.attempt: span_id(run.id, "node", node.attempt) for node in run.nodes if node.attempt is not None}

    def around(attempt: str | None) -> uuid.UUID:
        """The span of a node's run; that of the whole run where there is none."""
        return root.id if attempt is None else ids.get(attempt, root.id)

    spans += _nodes(run, ids, around)
    for number, call in enumerate(run.completions):
        spans.append(_model(run, number, call, around(call.attempt)))
    for number, tool in enumerate(run.tool_calls):
        spans.append(_tool(run, number, tool, around(tool.attempt)))
    return spans


def scores(run: Trajectory) -> dict[str, float]:
    """The reward of a run as `reward`, and the parts of it by name."""
    parts = {name: float(value) for name, value in run.metrics.items() if name != "reward"}
    return parts if run.reward is None else {"reward": run.reward, **parts}


def _nodes(run: Trajectory, ids: Mapping[str, uuid.UUID], around: Callable[[str | None], uuid.UUID]) -> list[Span]:
    """The runs of nodes, each after the one around it, whatever their order in the trajectory. Paths do not say which
    one that is: a graph with a checkpointer of its own begins a new path."""
    parents = {node.attempt: node.parent for node in run.nodes if node.attempt is not None}

    def depth(node: NodeRun) -> int:
        above, count = node.parent, 0
        while above in parents and count <= len(parents):  # more would be a circle, which no run has
            above, count = parents[above], count + 1
        return count

    spans: list[Span] = []
    span_ids = {span_id(run.id)}
    for node in sorted(run.nodes, key=depth):
        if node.attempt is None:
            continue
        parent = around(node.parent)
        spans.append(
            Span(
                id=ids[node.attempt],
                parent=parent if parent in span_ids else span_id(run.id),
                kind="node",
                name=node.node or "node",
                start_time=node.started,
                seconds=node.seconds,
                error=node.error,
                facts=_place(node) | ({"interrupted": True} if node.interrupted else {}),
            )
        )
        span_ids.add(ids[node.attempt])
    return spans


def _model(run: Trajectory, number: int, call: CompletionCall, parent: uuid.UUID) -> Span:
    facts = {"completion": call.id, "model": call.model, "version": call.version, **_place(call)}
    if call.superseded is not None:
        facts["superseded"] = call.superseded
    if call.cached:
        facts["cached"] = True
    if call.reward is not None:
        facts["reward"] = call.reward
    return Span(
        id=span_id(run.id, "model", number),
        parent=parent,
        kind="model",
        name=call.model or "model",
        start_time=call.started,
        seconds=call.seconds,
        input=_shorten_data({"messages": call.messages}),
        output=_shorten_data(call.message),
        error=call.error,
        facts=facts,
    )


def _tool(run: Trajectory, number: int, call: ToolCall, parent: uuid.UUID) -> Span:
    output = call.result if call.structured is None else {"text": call.result, "structured": call.structured}
    error = call.failure or (call.result or "the tool failed" if call.is_error else None)
    server = {} if call.server is None else {"server": call.server, "server_version": call.server_version}
    return Span(
        id=span_id(run.id, "tool", number),
        parent=parent,
        kind="tool",
        name=call.tool,
        start_time=call.started,
        seconds=call.seconds,
        input=_shorten_data(call.arguments),
        output=_shorten_data(output),
        error=_shorten_data(error),
        facts={**server, **_place(call)},
    )


def _place(place: Place) -> dict[str, Any]:
    facts = {"node": place.node, "agent": place.agent, "step": place.step, "branch": place.branch}
    path = {"path": place.path} if place.path else {}
    return {name: value for name, value in facts.items() if value is not None} | path


def _length(run: Trajectory) -> float:
    """Seconds of a run; up to the end of its last call where the run does not say."""
    parts: Sequence[Any] = [*run.nodes, *run.completions, *run.tool_calls]
    ends: list[float] = [part.started + part.seconds - run.started for part in parts]
    return max(run.seconds, *ends, 0.0)


def _shorten_data(value: Any) -> Any:
    """Plain data with long texts cut."""
    return map_texts(plain(value), lambda text: beginning(text, MOST_TEXT))
