"""Runs beside one another: a group, a scenario across versions, the difference of two runs."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

from fastapi import APIRouter, Request, Response

from trainer_server.common.run_tree import CallItem, Item, NodeItem, ToolItem, call_line, call_text, first_items
from trainer_server.dashboard.facts import RunFacts, facts_of
from trainer_server.dashboard.render import PageRoute, as_json, page
from trainer_server.dashboard.sources import Sources, SourcesDep
from trainer_server.dashboard.step_history import of_completion
from trainer_server.ledger.run_list import MOST_OUTCOMES
from trainer_server.wire import NotFound, VersionNumber

router = APIRouter(prefix="/ui", include_in_schema=False, route_class=PageRoute)

_MOST_WORDS = 1500
"""Words of a text that are compared one by one; longer ones are compared by lines."""
_MOST_TEXT = 60_000
_MOST_MOVES, _MOST_OF_A_MOVE = 12, 1_000
"""Model and tool calls of a run whose difference from the first run a group marks, and characters of each."""
_MOST_ITEMS = 100
"""Nodes and calls of a run that a group shows."""
_Call = tuple[str, CallItem]
_Move = tuple[str, str]
"""What makes the move, and its text."""
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Difference:
    """A piece of two texts: `same`, `left` (only in the first) or `right` (only in the second)."""

    kind: str
    text: str


@router.get("/groups")
async def show_group(
    request: Request, sources: SourcesDep, scenario: str, policy: str = "", version: VersionNumber | None = None
) -> Response:
    """The runs of a scenario by one version, side by side."""
    await sources.look()
    return page(request, "group.html", **await asyncio.to_thread(_group, sources, scenario, policy, version))


@router.get("/scenarios")
async def show_scenario(request: Request, sources: SourcesDep, id: str, policy: str = "") -> Response:
    """A scenario across the versions that ran it, with the curves of one policy."""
    await sources.look()
    return page(request, "scenario.html", **await asyncio.to_thread(_scenario, sources, id, policy))


@router.get("/diff")
async def show_diff(request: Request, sources: SourcesDep, a: str = "", b: str = "") -> Response:
    """The difference of two runs."""
    if not (a and b):
        return page(request, "diff.html", runs=None, a=a, b=b)
    await sources.look()
    first = await asyncio.to_thread(facts_of, sources, a.strip())
    second = await asyncio.to_thread(facts_of, sources, b.strip())
    values = await asyncio.to_thread(_difference, first, second)
    return page(request, "diff.html", runs=(first, second), a=first.id, b=second.id, **values)


def _group(sources: Sources, scenario: str, policy: str, version: int | None) -> dict[str, Any]:
    rows = sources.runs.group(scenario, policy, version)
    if not rows:
        raise NotFound(f"no run of the scenario {scenario!r:.200} is known for {policy or 'no policy'}", code="none")
    facts = [facts_of(sources, row.id) for row in rows[:16]]
    moves = [list(islice(_moves(run.items), _MOST_MOVES)) for run in facts]
    rewards = [row.reward for row in rows if row.reward is not None and not row.evaluation]
    dead = len(rewards) > 1 and max(rewards) == min(rewards)
    return {
        "scenario": scenario,
        "policy": policy,
        "version": version,
        "rows": rows,
        "facts": facts,
        "words": sources.words([scenario])[scenario],
        "moves": [_compare_moves(moves[0], of_run) for of_run in moves],
        "trees": [first_items(run.items, _MOST_ITEMS) for run in facts],
        "verdicts": {row.id: of_completion(row, run.steps)[2] for run in facts for row in run.completions},
        "dead": dead,
    }


def _moves(items: Sequence[Item], node: str = "") -> Iterator[_Move]:
    """Model and tool calls of a tree in its order, without calls that were superseded."""
    for item in items:
        if isinstance(item, NodeItem):
            yield from _moves(item.inside, item.label)
        elif isinstance(item, ToolItem):
            yield item.tool.tool, (item.tool.result or item.tool.failure or "")[:_MOST_OF_A_MOVE]
        elif not item.call.superseded:
            yield node or "model", _message_text((node, item))[:_MOST_OF_A_MOVE]


def _compare_moves(first: Sequence[_Move], moves: Sequence[_Move]) -> list[dict[str, Any]]:
    """Moves of a run in pieces, of which `right` is not in the first run."""
    rows = []
    matcher = difflib.SequenceMatcher(None, [name for name, _ in first], [name for name, _ in moves], autojunk=False)
    for _, a, b, c, d in matcher.get_opcodes():
        for left, right in zip_longest(first[a:b], moves[c:d]):
            if right is not None:
                pieces = [piece for piece in differences(left[1] if left else "", right[1]) if piece.kind != "left"]
                rows.append({"name": right[0], "pieces": pieces, "same": left == right})
    return rows


def _scenario(sources: Sources, scenario: str, policy: str) -> dict[str, Any]:
    outcomes = sources.runs.by_scenario(scenario)
    present = {row.name for row in sources.server.store.policies()}
    policies = [name for name in dict.fromkeys(outcome.policy for outcome in outcomes) if name in present]
    policy = policy if policy in policies else next(iter(policies), "")
    curves = sorted(sources.curves(policy, scenario)) if policy else []
    cut = len(outcomes) == MOST_OUTCOMES
    return {
        "scenario": scenario,
        "words": sources.words([scenario])[scenario],
        "outcomes": outcomes,
        "policies": policies,
        "policy": policy,
        "curves": curves,
        "cut": cut,
    }


def _difference(first: RunFacts, second: RunFacts) -> dict[str, Any]:
    pairs = []
    for left, right in _pair_calls(first.calls, second.calls):
        texts = _message_text(left), _message_text(right)
        pairs.append({"left": left, "right": right, "pieces": list(differences(*texts)), "same": texts[0] == texts[1]})
    tools = [
        [
            f"{call_text(tool.tool, tool.arguments)} → {tool.result or ''}"
            for tool in (run.trace.tool_calls if run.trace else ())
        ]
        for run in (first, second)
    ]
    lines = list(_by_units(tools[0], tools[1], "\n"))
    names = sorted(first.metrics.keys() | second.metrics.keys())
    metrics = [(name, first.metrics.get(name), second.metrics.get(name)) for name in names]
    return {"pairs": pairs, "tools": lines, "metrics": metrics}


def _pair_calls(left: Sequence[_Call], right: Sequence[_Call]) -> Iterator[tuple[_Call | None, _Call | None]]:
    """Calls of two runs beside each other: those of the same nodes, in their order."""
    matcher = difflib.SequenceMatcher(None, [path for path, _ in left], [path for path, _ in right], autojunk=False)
    for _, a, b, c, d in matcher.get_opcodes():
        yield from zip_longest(left[a:b], right[c:d])


def _message_text(model_call: _Call | None) -> str:
    if model_call is None:
        return ""
    _, item = model_call
    message = item.call.message or (item.row.message if item.row else None) or {}
    content = message.get("content")
    parts = [content if isinstance(content, str) else as_json(content) if content else ""]
    parts += [f"→ {call_line(call)}" for call in message.get("tool_calls") or []]
    return "\n".join(filter(None, parts))[:_MOST_TEXT]


def differences(left: str, right: str) -> Iterator[Difference]:
    """Two texts as pieces: word by word, or line by line where they are long."""
    words = _WORD.findall(left), _WORD.findall(right)
    if max(map(len, words)) <= _MOST_WORDS:
        yield from _by_units(*words, "")
    else:
        yield from _by_units(left.splitlines(), right.splitlines(), "\n")


def _by_units(left: Sequence[str], right: Sequence[str], between: str) -> Iterator[Difference]:
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=True)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            yield Difference("same", between.join(left[a:b]) + between)
            continue
        if b > a:
            yield Difference("left", between.join(left[a:b]) + between)
        if d > c:
            yield Difference("right", between.join(right[c:d]) + between)
