"""The simulation of engines that get rollouts: what it counts can be counted by hand, and the sides see the same."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.routing import SIDES, Load, Rates, measure, rollouts_of, simulate

LOAD = Load(engines=2, groups=2, n=4, slots=4, shared=160, context=1600)
RATES = Rates(prefill=10_000, iteration=0.01, sequence=1e-4, cache=100_000)


def tool_tokens(load: Load) -> int:
    """Tokens that tools give, which no cache knows; answers are in the cache of the engine that gave them."""
    return sum(tool for rollout in rollouts_of(load, 0) for _, tool, _ in rollout.turns[:-1])


def test_a_prompt_is_cold_once_on_each_engine_that_gets_it() -> None:
    """Blocks have 16 tokens, so that up to 15 of each turn are computed again."""
    turns = sum(len(rollout.turns) for rollout in rollouts_of(LOAD, 0))
    cold = {side: simulate(LOAD, RATES, side, 0)["cold"] for side in SIDES}
    prompts = {"least busy": 2 * (160 + 2 * 1600), "affinity": 2 * (160 + 1600)}
    for side, tokens in prompts.items():
        assert 0 <= cold[side] - tokens - tool_tokens(LOAD) <= 16 * turns
    assert cold["with spill"] == cold["affinity"]  # four rollouts are too few to spill


def test_what_does_not_fit_the_cache_is_computed_again_or_refused() -> None:
    load = dataclasses.replace(LOAD, engines=1)
    small = dataclasses.replace(RATES, cache=8000)
    assert simulate(load, small, "affinity", 0)["cold"] > simulate(load, RATES, "affinity", 0)["cold"]
    with pytest.raises(SystemExit, match="do not fit --cache 1600"):
        simulate(load, dataclasses.replace(RATES, cache=1600), "affinity", 0)


def test_the_same_arguments_give_the_same_figures() -> None:
    assert measure(LOAD, RATES, 1) == measure(LOAD, RATES, 1)
