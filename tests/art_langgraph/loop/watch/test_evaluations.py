"""An evaluation is not made twice, unless the reward function has changed."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import Evaluation, HeldOut, Scenario, Trajectory, TrajectoryStore, weighted
from art_langgraph.loop.watch.held_out import Evaluations, reward_facts
from art_langgraph.rewards import RewardFunction
from trainer_server.wire import Policy, PolicySpec

HELD = [Scenario(input="held")]
SOURCE = """
LEAST = 0.5

def degree(run):
    return len(run.final_text) / 10 if run.final_text in {"a", "b", "c"} else degree(run)

def reward(run):
    return float(degree(run) > LEAST)
"""


def defined(source: str, name: str = "reward") -> Any:
    """A function as a new process has it."""
    space: dict[str, Any] = {"__name__": "mine"}
    exec(compile(source, "mine.py", "exec"), space)
    return space[name]


def facts(reward: Any) -> str:
    return json.dumps(reward_facts(reward))


def above(least: float) -> Callable[[Trajectory], float]:
    return lambda run: float(len(run.final_text) > least)


def longer(run: Trajectory, least: float = 1.0) -> float:
    return float(len(run.final_text) > least)


@dataclass(frozen=True)
class Frozen:
    """A reward with settings."""

    least: float

    def __call__(self, run: Trajectory) -> float:
        return float(len(run.final_text) > self.least)


class Counting:
    """A reward that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, run: Trajectory) -> float:
        self.calls += 1
        return 1.0


@pytest.mark.parametrize(
    "change",
    [("> LEAST", ">= LEAST"), ("LEAST = 0.5", "LEAST = 0.9"), ("/ 10", "/ 20"), ('"c"', '"d"'), ("reward", "grade")],
)
def test_a_reward_that_was_changed_is_another_one(change: tuple[str, str]) -> None:
    name = "grade" if change[0] == "reward" else "reward"
    assert facts(defined(SOURCE)) == facts(defined(f"# the same, further below\n{SOURCE}"))
    assert facts(defined(SOURCE)) != facts(defined(SOURCE.replace(*change), name))


@pytest.mark.parametrize(
    ("reward", "other"),
    [
        (weighted(long=(1.0, longer)), weighted(long=(0.5, longer))),
        (weighted(long=(1.0, longer)), weighted(long=(1.0, above(1.0)))),
        (weighted(long=(1.0, above(1.0))), weighted(long=(1.0, above(2.0)))),
        (functools.partial(longer, least=1.0), functools.partial(longer, least=2.0)),
        (functools.partial(longer, least=1.0), functools.partial(Frozen.__call__, Frozen(1.0))),
        (functools.cache(above(1.0)), functools.cache(above(2.0))),
        (Frozen(1.0), Frozen(2.0)),
        (Frozen(1.0).__call__, Frozen(2.0).__call__),
        (Frozen(1.0), Counting()),
        (None, longer),
        (min, max),
    ],
)
def test_rewards_are_told_apart_by_their_parts(reward: Any, other: Any) -> None:
    assert facts(reward) != facts(other)
    assert facts(reward) == facts(reward)


def test_what_a_reward_counts_while_it_is_used_makes_it_no_other_one() -> None:
    used: Any = Counting()
    used(None)
    assert facts(used) == facts(Counting())


def test_a_reward_is_known_before_all_that_it_encloses_is_there() -> None:
    def reward(run: Trajectory) -> float:
        return helper(run)

    early = facts(reward)
    helper = above(1.0)
    assert early != facts(reward)


def test_what_contains_itself_is_known_by_its_name() -> None:
    kept: list[Any] = []
    kept.append(kept)

    def reward(run: Trajectory) -> float:
        return float(len(kept))

    assert "reward" in facts(reward)


async def test_a_changed_reward_measures_a_version_again(tmp_path: Path) -> None:
    store, measured = TrajectoryStore(tmp_path / "s.sqlite"), list[RewardFunction | None]()

    async def measure(scenarios: Any, reward: Any, **options: Any) -> Evaluation:
        measured.append(reward)
        run = Trajectory(scenario=HELD[0], reward=1.0)
        store.add(run)
        return Evaluation([run], options["version"])

    def evaluations(reward: RewardFunction) -> Evaluations:
        policy = Policy(name="p", spec=PolicySpec(name="p"), base_model="base", created=1.0, latest=1)
        return Evaluations(
            measure, policy, HeldOut(HELD, reward=reward), store=store, run="mine", resumed=True, progress=False,
        )  # fmt: skip

    for least in (1.0, 1.0, 2.0, 1.0):
        await evaluations(weighted(long=(1.0, above(least)))).of(0)
    assert len(measured) == 2, "once for each reward"
