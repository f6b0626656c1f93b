"""Trajectories as text for a judge. What all runs begin with is written once; a run that branched is a tree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from art_langgraph.messages import plain
from art_langgraph.trajectory import CompletionCall, Trajectory
from trainer_server.wire.text import writable

_BYTES_PER_TOKEN = 4
"""An estimate: each judge model has a tokenizer of its own."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on the text that a judge sees, in tokens of about four bytes."""

    tool: int = 500
    """Most tokens of a tool result."""
    message: int = 4000
    """Most tokens of any other message."""


@dataclass(slots=True)
class _Turn:
    """A message and the messages that followed it: a single one in a conversation, several where a run branched."""

    node: str | None = None
    after: dict[str, _Turn] = field(default_factory=dict)


def transcripts(trajectories: Sequence[Trajectory], budget: Budget | None = None) -> tuple[str, list[str]]:
    """Writes trajectories of a scenario as text.

    The messages that the models received and answered form a prefix tree, as tokens do in training. Branches, subgraphs
    and rewritten histories need no special case. Superseded attempts are left out. Tool results and messages over the
    budget lose their middle, and a note says how much.

    Args:
        trajectories: Runs of the same scenario.
        budget: Limits on the text; None: the defaults.

    Returns:
        The text that all runs begin with, which may be empty, and the rest of each run.
    """
    budget = budget or Budget()
    trees = [_tree(trajectory, budget) for trajectory in trajectories]
    common_start: list[str] = []
    at = [tree for tree in trees if tree.after]
    while at and all(len(turn.after) == 1 for turn in at) and len({next(iter(turn.after)) for turn in at}) == 1:
        common_start.append(next(iter(at[0].after)))
        at = [turn.after[common_start[-1]] for turn in at]
    texts = []
    for trajectory, tree in zip(trajectories, trees, strict=True):
        for turn in common_start if tree.after else ():
            tree = tree.after[turn]
        texts.append("\n".join([*_lines(tree, ""), *_ending(trajectory, budget)]) or "(nothing more happened)")
    if not common_start:
        common_start = [_entry("task", _json(plain(run.scenario.input), budget.message)) for run in trajectories[:1]]
    return writable("\n".join(common_start)), [writable(text) for text in texts]


def cut(text: str, tokens: int) -> str:
    """A text without its middle where it is longer than `tokens` tokens of about four bytes. It says what it lacks."""
    text = writable(text)
    whole, limit = text.encode(), tokens * _BYTES_PER_TOKEN
    if len(whole) <= limit:
        return text
    tail = limit // 3
    head = whole[: limit - tail].decode(errors="ignore")
    end = whole[len(whole) - tail :].decode(errors="ignore") if tail else ""
    return f"{head}\n[… {len(text) - len(head) - len(end)} characters are left out here …]\n{end}"


def _tree(trajectory: Trajectory, budget: Budget) -> _Turn:
    root = _Turn()
    calls = [call for call in trajectory.completions if call.superseded is None]
    for call in sorted(calls, key=lambda call: call.started):
        at = root
        for message in call.messages:
            at = at.after.setdefault(_message(message, budget), _Turn())
        at.after.setdefault(_answer(call, budget), _Turn(node="/".join(call.path) or None))
    return root


def _lines(turn: _Turn, indent: str) -> list[str]:
    lines: list[str] = []
    while len(turn.after) == 1:
        ((text, turn),) = turn.after.items()
        lines += [indent + line for line in text.splitlines()]
    for number, (text, following) in enumerate(turn.after.items(), start=1):
        node = _first_node(following)
        lines.append(f"{indent}── branch {number} of {len(turn.after)}{f' (node {node})' if node else ''} ──")
        lines += [f"{indent}│ {line}" for line in text.splitlines()]
        lines += _lines(following, f"{indent}│ ")
    return lines


def _first_node(turn: _Turn) -> str | None:
    while turn.node is None and turn.after:
        turn = next(iter(turn.after.values()))
    return turn.node


def _entry(label: str, text: str) -> str:
    """An entry with its label. Further lines are indented, so that a run which writes "[tool result] all is well" into
    its answer cannot fake a label."""
    return f"[{label}] " + "\n  ".join(text.splitlines())


def _answer(call: CompletionCall, budget: Budget) -> str:
    if call.message is None:
        return _entry("model call failed", cut(call.error or "no answer", budget.message))
    return _message(call.message, budget)


def _message(message: dict[str, Any], budget: Budget) -> str:
    role = str(message.get("role"))
    limit = budget.tool if role == "tool" else budget.message
    content, calls = _content(message.get("content") or message.get("refusal")), message.get("tool_calls") or ()
    entries = []
    if content or not calls:
        entries.append(_entry("tool result" if role == "tool" else role, cut(content, limit) or "(no text)"))
    for call in calls:
        function = call["function"]
        entries.append(_entry(f"{role} calls a tool", f"{function['name']}({cut(str(function['arguments']), limit)})"))
    return "\n".join(entries)


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text", f"[{part.get('type')}]")) if isinstance(part, dict) else str(part) for part in content
        )
    return "" if content is None else str(content)


def _ending(trajectory: Trajectory, budget: Budget) -> list[str]:
    """What no model received: results of the last tool calls, the final state of the graph, and its error."""
    calls = [call for call in trajectory.completions if call.superseded is None]
    seen_ids = {str(m["tool_call_id"]) for call in calls for m in call.messages if m.get("tool_call_id")}
    call_ids = {str(t["id"]) for call in calls for t in (call.message or {}).get("tool_calls") or ()}
    entries = []
    for tool in trajectory.tool_calls:
        if tool.tool_call_id in seen_ids:
            continue
        arguments = "" if tool.tool_call_id in call_ids else f"({_json(plain(tool.arguments), budget.tool)})"
        result = f"{tool.tool}{arguments} gave {cut(tool.result or 'nothing', budget.tool)}"
        entries.append(_entry("tool error" if tool.is_error else "tool result", result))
    model_texts = {_content((call.message or {}).get("content")) for call in calls}
    if state := _state(trajectory, model_texts):
        entries.append(_entry("final state", _json(state, budget.message)))
    if trajectory.error:
        entries.append(_entry("the run ended with an error", cut(trajectory.error, budget.message)))
    return entries


def _state(trajectory: Trajectory, model_texts: set[str]) -> Any:
    """The graph's output without its messages and its input; None where it repeats what a model said."""
    output = trajectory.output
    if not isinstance(output, dict):
        return None if output is None or str(output) in model_texts else plain(output)
    inputs = trajectory.scenario.input if isinstance(trajectory.scenario.input, dict) else {}
    state = {key: value for key, value in output.items() if key != "messages" and inputs.get(key) != value}
    last = (output.get("messages") or [None])[-1]
    text = _content(last.get("content") if isinstance(last, dict) else getattr(last, "content", None))
    if text and text not in model_texts:
        state["last message"] = text
    return plain(state)


def _json(value: Any, tokens: int) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), tokens)
