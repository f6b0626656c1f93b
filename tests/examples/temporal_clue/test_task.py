"""temporal_clue: a fact a node, and that two steps train it."""

from __future__ import annotations

import random

import pytest
from art_examples.temporal_clue.puzzles import make
from art_examples.temporal_clue.task import HELD_OUT, TRAINING, demonstration, scenario, temporal_clue

from art_langgraph import NodeRewards, Trajectory
from tests.support.runs.tasks import Scripted, learned_in_two_steps, run
from tests.support.servers.trainer_server import TrainerServer

PUZZLE = make(("Ann", "Ben", "Carl"), random.Random(0))


async def test_a_demonstration_is_a_run_of_the_graph_that_gets_the_whole_reward() -> None:
    shown = demonstration(PUZZLE).messages
    at = [index for index, message in enumerate(shown) if message["role"] == "assistant"]
    model = Scripted(answers=[shown[index]["content"] for index in at])
    async with temporal_clue(0) as task:
        made = await run(task, scenario(PUZZLE), model)
        assert task.success(made)
    assert model.asked == [shown[:index] for index in at]
    assert made.reward == pytest.approx(1.0)


@pytest.mark.parametrize(("wrong", "right"), [("when", "where who"), ("who", "when where"), ("when where who", "")])
async def test_each_fact_counts_for_the_node_that_names_it(wrong: str, right: str) -> None:
    answers = ["Nobody." if name in wrong.split() else f" {getattr(PUZZLE, name).upper()}." for name in
               ("when", "where", "who")]  # fmt: skip
    async with temporal_clue(0) as task:
        made = await run(task, scenario(PUZZLE), Scripted(answers=answers))
        assert not task.success(made)
    assert made.node_rewards == {name: pytest.approx(1 / 3 if name in right.split() else 0.0) for name in
                                 ("when", "where", "who")}  # fmt: skip


async def test_a_run_that_ended_early_has_the_facts_that_it_named() -> None:
    async with temporal_clue(0) as task:
        assert task.reward(Trajectory(scenario=scenario(PUZZLE))) == NodeRewards(when=0.0, where=0.0, who=0.0)


async def test_nobody_of_a_held_out_puzzle_is_in_training() -> None:
    assert not set(TRAINING) & set(HELD_OUT)
    async with temporal_clue(0) as first, temporal_clue(1) as second:
        assert [one.id for one in first.held_out] == [one.id for one in second.held_out]
        assert [one.id for one in first.training] != [one.id for one in second.training]
        stated = [puzzle.input["puzzle"].count("\n") == 8 for puzzle in first.held_out]
        assert stated.count(True) == len(stated) // 2
        for puzzle in first.held_out:
            assert puzzle.metadata["who"] in HELD_OUT
        assert {one.metadata["who"] for one in first.training} <= set(TRAINING)


@pytest.mark.slow
async def test_two_steps_train_it(connected: TrainerServer) -> None:
    learned = await learned_in_two_steps(temporal_clue, "temporal-clue", connected, ["noon", "night"])
    assert len(learned.rewards) == 2
    assert learned.skipped < 2
    assert learned.tokens["training"] > 0
    assert learned.after is not None
    assert learned.after.n == 4
