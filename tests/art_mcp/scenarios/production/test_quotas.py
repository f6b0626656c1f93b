"""How many scenarios of a kind are wanted."""

from __future__ import annotations

import random
from itertools import count

import pytest

from art_mcp.scenarios.plan import HELD_OUT, Kind, MCPScenario, Plan, Split, Step
from art_mcp.scenarios.production.quotas import ASIDE, MAX_ASIDE, ScenarioQuota

NUMBERS = count()
SETS: tuple[Split, ...] = ("train", *HELD_OUT)


def scenario(split: Split, kind: Kind) -> MCPScenario:
    reference = [] if kind in ASIDE else [Step(tool="look")]
    reply = "result" if reference else "talk"
    return MCPScenario.make(f"Task {next(NUMBERS)}.", Plan(reference=reference, reply=reply, split=split, kind=kind))


def aside_count(quota: ScenarioQuota, split: Split) -> int:
    return sum(quota.kind_count(split, kind) for kind in ASIDE)


@pytest.mark.parametrize("number", [None, 60, 12])
def test_small_talk_and_impossible_tasks_are_a_tenth_at_each_moment(number: int | None) -> None:
    quota, rng = ScenarioQuota(number, 0.25, lambda _: None), random.Random(0)
    for _ in range(120):
        quota.add(scenario(rng.choice(SETS), "single"))
        for split in SETS:
            for kind in rng.sample(ASIDE, len(ASIDE)):
                while quota.shortfall(split, kind):
                    quota.add(scenario(split, kind))
            assert aside_count(quota, split) <= MAX_ASIDE * quota.size(split)
    assert number is not None or aside_count(quota, "train") > 1


def test_no_small_talk_takes_the_place_of_impossible_tasks() -> None:
    quota = ScenarioQuota(1200, 0.25, lambda _: None)
    for _ in range(90):
        quota.add(scenario("train", "single"))
    while quota.shortfall("train", "talk"):
        quota.add(scenario("train", "talk"))
    assert 0 < quota.kind_count("train", "talk") < 10
    assert quota.shortfall("train", "impossible") == 10 - quota.kind_count("train", "talk")
