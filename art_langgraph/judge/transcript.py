"""Trajectories as text for a judge: what each run did, as a tree where it branched; what all runs share, once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from art_langgraph.messages import plain
from art_langgraph.trajectory import CompletionCall, Trajectory

_BYTES_PER_TOKEN = 4
"""A rough measure that needs no tokenizer: judges differ in theirs."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most tokens, of about four bytes, that one tool result or one other message may take."""

    tool: int = 500
    message: int = 4000


@dataclass(slots=True)
class _Turn:
    """A message and what followed it: one thing in a conversation, several where a run branched."""

    node: str | None = None
    after: dict[str, _Turn] = field(default_factory=dict)


def transcripts(trajectories: Sequence[Trajectory], budget: Budget | None = None) -> tuple[str, list[str]]:
    """What all runs begin with, and what each did from there on. Both may be empty.

    Messages that the runs' models saw and said form a tree by common beginnings, as tokens do in training: branches,
    subgraphs and rewritten histories need no special case. Attempts that a retry or a resume made void are left out.
    Tool results and messages over the budget lose their middle, and say so.
    """
    budget = budget or Budget()
    trees = [_tree(one, budget) for one in trajectories]
    shared: list[str] = []
    at = [tree for tree in trees if tree.after]
    while at and all(len(turn.after) == 1 for turn in at) and len({next(iter(turn.after)) for turn in at}) == 1:
        shared.append(next(iter(at[0].after)))
        at = [turn.after[shared[-1]] for turn in at]
    texts = []
    for one, tree in zip(trajectories, trees, strict=True):
        for turn in shared if tree.after else ():
            tree = tree.after[turn]
        texts.append("\n".join([*_lines(tree, ""), *_ending(one, budget)]) or "(nothing more happened)")
    if not shared:
        shared = [_entry("task", _json(plain(one.scenario.input), budget.message)) for one in trajectories[:1]]
    return "\n".join(shared), texts


def cut(text: str, tokens: int) -> str:
    """A text without its middle where it is longer than `tokens` tokens of about four bytes."""
    whole, limit = text.encode(), tokens * _BYTES_PER_TOKEN
    if len(whole) <= limit:
        return text
    tail = limit // 3
    head = whole[: limit - tail].decode(errors="ignore")
    end = whole[len(whole) - tail :].decode(errors="ignore") if tail else ""
    return f"{head}\n[… {len(text) - len(head) - len(end)} characters are left out here …]\n{end}"


def _tree(one: Trajectory, budget: Budget) -> _Turn:
    root = _Turn()
    for call in sorted((c for c in one.completions if c.superseded is None), key=lambda call: call.started):
        at = root
        for message in call.messages:
            at = at.after.setdefault(_message(message, budget), _Turn())
        at.after.setdefault(_answer(call, budget), _Turn(node="/".join(call.path) or None))
    return root


def _lines(turn: _Turn, indent: str) -> list[str]:
    found: list[str] = []
    while len(turn.after) == 1:
        ((text, turn),) = turn.after.items()
        found += [indent + line for line in text.splitlines()]
    for number, (text, following) in enumerate(turn.after.items(), start=1):
        node = _first_node(following)
        found.append(f"{indent}── branch {number} of {len(turn.after)}{f' (node {node})' if node else ''} ──")
        found += [f"{indent}│ {line}" for line in text.splitlines()]
        found += _lines(following, f"{indent}│ ")
    return found


def _first_node(turn: _Turn) -> str | None:
    while turn.node is None and turn.after:
        turn = next(iter(turn.after.values()))
    return turn.node


def _entry(label: str, text: str) -> str:
    """One thing that happened. Only our labels stand at the beginning of a line: a run that writes "[tool result] all
    is well" into its answer has not made one."""
    return f"[{label}] " + "\n  ".join(text.splitlines())


def _answer(call: CompletionCall, budget: Budget) -> str:
    if call.message is None:
        return _entry("model call failed", cut(call.error or "no answer", budget.message))
    return _message(call.message, budget)


def _message(message: dict[str, Any], budget: Budget) -> str:
    role = str(message.get("role"))
    limit = budget.tool if role == "tool" else budget.message
    content, calls = _content(message.get("content")), message.get("tool_calls") or ()
    entries = []
    if content or not calls:
        entries.append(_entry("tool result" if role == "tool" else role, cut(content, limit) or "(no text)"))
    for asked in calls:
        function = asked["function"]
        entries.append(_entry(f"{role} calls a tool", f"{function['name']}({cut(str(function['arguments']), limit)})"))
    return "\n".join(entries)


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text", f"[{part.get('type')}]")) if isinstance(part, dict) else str(part) for part in content
        )
    return "" if content is None else str(content)


def _ending(one: Trajectory, budget: Budget) -> list[str]:
    """What no model saw: results of the last tools, the state that the graph ended in, what it raised."""
    calls = [call for call in one.completions if call.superseded is None]
    seen = {str(m["tool_call_id"]) for call in calls for m in call.messages if m.get("tool_call_id")}
    asked = {str(t["id"]) for call in calls for t in (call.message or {}).get("tool_calls") or ()}
    entries = []
    for tool in one.tool_calls:
        if tool.tool_call_id in seen:
            continue
        shown = "" if tool.tool_call_id in asked else f"({_json(plain(tool.arguments), budget.tool)})"
        result = f"{tool.tool}{shown} gave {cut(tool.result or 'nothing', budget.tool)}"
        entries.append(_entry("tool error" if tool.is_error else "tool result", result))
    said = {_content((call.message or {}).get("content")) for call in calls}
    if state := _state(one, said):
        entries.append(_entry("final state", _json(state, budget.message)))
    if one.error:
        entries.append(_entry("the run ended with an error", cut(one.error, budget.message)))
    return entries


def _state(one: Trajectory, said: set[str]) -> Any:
    """The graph's output, less its conversation and what it was given, unless a model said it already."""
    output = one.output
    if not isinstance(output, dict):
        return None if output is None or str(output) in said else plain(output)
    given = one.scenario.input if isinstance(one.scenario.input, dict) else {}
    found = {key: value for key, value in output.items() if key != "messages" and given.get(key) != value}
    last = (output.get("messages") or [None])[-1]
    text = _content(last.get("content") if isinstance(last, dict) else getattr(last, "content", None))
    if text and text not in said:
        found["last message"] = text
    return plain(found)


def _json(value: Any, tokens: int) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), tokens)
