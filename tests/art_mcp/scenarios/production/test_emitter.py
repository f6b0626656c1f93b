"""Tasks are made of executed calls by turns, and of the same calls only so many."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count
from typing import Any

from art_mcp.scenarios.drafting.draft import Draft, ExecutedDraft, Obstacle
from art_mcp.scenarios.execute import Execution, Trial
from art_mcp.scenarios.phrasing.wish import Wish
from art_mcp.scenarios.plan import MCPScenario, Plan, Split, Step
from art_mcp.scenarios.production.emitter import MAX_TASKS, Emitter
from art_mcp.scenarios.production.pool import Pool
from art_mcp.scenarios.production.quotas import ScenarioQuota


class Numbered:
    """Composes tasks whose texts are numbers."""

    def __init__(self) -> None:
        self._numbers = count()

    def _of(self, steps: list[Step], split: Split, **plan: Any) -> MCPScenario:
        return MCPScenario.make(f"Task {next(self._numbers)}.", Plan(reference=steps, split=split, **plan))

    def task(self, done: ExecutedDraft, split: Split) -> MCPScenario:
        return self._of(done.trial.steps, split)

    def pair(self, first: ExecutedDraft, second: ExecutedDraft, split: Split) -> MCPScenario:
        return self._of([*first.trial.steps, *second.trial.steps], split, kind="pair")

    def impossible(self, done: ExecutedDraft, like: list[ExecutedDraft], split: Split) -> MCPScenario:
        return self._of(done.trial.steps, split, kind="impossible", reply="refusal")

    def errand(self, split: Split) -> None:
        return None

    def small_talk(self, split: Split, before: MCPScenario | None) -> None:
        return None


def done(tool: str, number: int, obstacle: Obstacle | None = None) -> ExecutedDraft:
    """An executed call that has changed something, and of which nothing can be asked."""
    step = Step(tool=tool, arguments={"number": number})
    executed = Execution([step], [], None)
    draft = Draft("single", [step], lambda _: Wish("do it", "doing it"), lambda *_: [], obstacle=obstacle)
    return ExecutedDraft(draft, Trial(executed, executed, None))


def test_held_out_tasks_that_act_are_of_several_calls() -> None:
    pool, kept = Pool(seed=0), ScenarioQuota(400, 0.3, lambda _: None)
    tools = ("cut", "glue", "paint")
    for tool in tools:
        for number in range(60):
            pool.add(done(tool, number))
    for first, second in (("cut", "glue"), ("cut", "paint"), ("glue", "paint")):
        for number in range(3):
            pool.add_pair(done(first, number), done(second, number))
    pool.hold(True)
    ((held, listed),) = pool.acted_and_held()
    assert len(listed) == 3
    Emitter(pool, Numbered(), kept, random.Random(0)).all(part=1.0)  # type: ignore[arg-type]
    told = Counter(one.plan.calls for one in kept.scenarios if one.plan.split == "combinations")
    assert list(told.values()) == [MAX_TASKS] * 3
    assert {one.tools for one in kept.scenarios if one.plan.split == "combinations"} == {held}


def test_calls_that_must_fail_take_turns() -> None:
    pool, kept = Pool(seed=0), ScenarioQuota(400, 0.0, lambda _: None)
    for number in range(60):
        pool.add(done("cut", number))
    for number in range(5):
        pool.add(done("cut", 100 + number, Obstacle(f"n-{number}", "board")))
    pool.add(done("glue", 0, Obstacle("n-0")))
    Emitter(pool, Numbered(), kept, random.Random(0)).all(part=1.0)  # type: ignore[arg-type]
    calls = Counter(one.plan.calls for one in kept.scenarios if one.plan.kind == "impossible")
    assert len(calls) == 6
    assert max(calls.values()) - min(calls.values()) <= 1
