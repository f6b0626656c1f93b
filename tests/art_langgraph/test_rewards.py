"""Rewards made of rewards: a part that fails fails the sum; a judge is asked only where a verifier could not decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from art_langgraph import NodeRewards, Ruler, Scenario, Trajectory, TrajectoryGroup, group_sum, weighted, when_undecided
from art_langgraph.rewards import UNDECIDED, RewardFunction, score, score_group
from art_langgraph.trajectory import CompletionCall
from trainer_server.wire import ConfigError

TASK = Scenario(id="sums", input="Two and two?")


def run(**fields: object) -> Trajectory:
    return Trajectory(scenario=TASK, **fields)


def group(*runs: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(scenario=TASK, trajectories=list(runs))


def half(_run: Trajectory) -> float:
    return 0.5


async def later(_run: Trajectory) -> dict[str, float]:
    return {"a": 0.25, "b": 0.5}


def broken(_run: Trajectory) -> float:
    raise KeyError("answer")


def called(*rewards: float | None) -> list[CompletionCall]:
    return [CompletionCall(id=str(at), started=0, reward=reward) for at, reward in enumerate(rewards)]


def sets_and(then: object) -> RewardFunction:
    """A reward function that sets a completion's reward, and then raises or returns something."""

    def reward(trajectory: Trajectory) -> float | None:
        trajectory.completions[0].reward = 0.7
        if isinstance(then, Exception):
            raise then
        return then  # type: ignore[return-value]

    return reward


@pytest.mark.parametrize("then", [KeyError("answer"), math.nan, "good"])
async def test_a_function_that_fails_leaves_no_reward_of_a_completion(then: object) -> None:
    one = run(completions=called(None, None), node_rewards={"n": 1.0}, reward_reason="x", judgement="jd-1")
    await score(one, sets_and(then))
    assert not one.scored
    assert one.reward_error is not None
    assert (one.node_rewards, one.reward_reason, one.judgement) == (None, None, None)


async def test_a_function_that_only_rewards_completions_has_decided() -> None:
    one = run(completions=called(None, None))
    await score(one, sets_and(None))
    assert (one.reward, one.reward_error, one.completions[0].reward) == (None, None, 0.7)
    assert one.scored


async def test_a_new_score_removes_rewards_of_completions_that_it_does_not_give() -> None:
    one = run(completions=called(0.2, 0.3))
    await score(one, half)
    assert [call.reward for call in one.completions] == [None, None]
    await score(one, lambda _: None)
    assert (one.scored, one.reward_error) == (False, UNDECIDED)


async def test_a_completions_reward_that_is_written_as_a_text_is_a_number() -> None:
    def reward(trajectory: Trajectory) -> None:
        trajectory.completions[0].reward = "0.5"  # type: ignore[assignment]

    scored = run(completions=called(None))
    await score(scored, reward)
    assert scored.completions[0].reward == 0.5


async def test_a_completions_reward_that_is_no_number_is_an_error_of_the_run() -> None:
    def reward(trajectory: Trajectory) -> float:
        trajectory.completions[0].reward = "high"  # type: ignore[assignment]
        return 1.0

    one = run(completions=called(None))
    await score(one, reward)
    assert "could not convert string to float: 'high'" in str(one.reward_error)
    assert not one.scored


@pytest.mark.parametrize("value", ["good", (1.0,), {"style": "good"}])
async def test_a_reward_that_is_no_number_is_told_what_it_may_be(value: Any) -> None:
    one = run()
    await score(one, lambda _: value)
    assert str(one.reward_error).endswith("a reward is a number, a dict of named numbers, NodeRewards, or None")


async def test_rewards_that_compare_runs_belong_to_one_judgement() -> None:
    def in_place(given: TrajectoryGroup) -> TrajectoryGroup:
        for at, one in enumerate(given.trajectories):
            one.reward = float(at)
        return given

    for reward in (Ruler(rising), group_sum(style=(0.3, Ruler(rising))), when_undecided(Ruler(rising)), in_place):
        given = group(run(reward=1.0), run())
        found, again = await score_group(given, reward), await score_group(given, reward)
        (judgement,) = {one.judgement for one in found.trajectories}
        assert judgement is not None
        assert judgement != again.trajectories[0].judgement
    unchanged = await score_group(group(run(reward=1.0)), lambda given: given)
    assert unchanged.trajectories[0].judgement is None


async def test_a_group_reward_may_work_in_place() -> None:
    def in_place(given: TrajectoryGroup) -> TrajectoryGroup:
        for one in given.trajectories:
            one.reward, one.metrics["kind"] = 0.5, 0.5
        return given

    given = group(run(reward=1.0), run(reward_error=UNDECIDED))
    assert (await score_group(given, when_undecided(in_place))).rewards == [1.0, 0.5]
    given = group(run(reward=1.0), run(reward=0.0))
    assert (await score_group(given, group_sum(style=(0.5, in_place), tone=(1.0, in_place)))).rewards == [1.75, 0.75]
    assert [(one.reward, one.metrics) for one in given.trajectories] == [(1.0, {}), (0.0, {})]

    def then_raises(given: TrajectoryGroup) -> TrajectoryGroup:
        raise ValueError(in_place(given).rewards)

    failed = await score_group(given, then_raises)
    assert [one.metrics["independent_reward"] for one in failed.trajectories] == [1.0, 0.0]


@pytest.mark.parametrize("value", [0.5, math.nan])
async def test_a_group_reward_may_reward_completions_and_nodes(value: float) -> None:
    def each(given: TrajectoryGroup) -> TrajectoryGroup:
        for one in given.trajectories:
            one.completions[0].reward = value
        return given

    def by_node(given: TrajectoryGroup) -> TrajectoryGroup:
        for one in given.trajectories:
            one.node_rewards = {"planner": value, "worker": 1.0 - value}
        return given

    for reward in (each, by_node):
        given = group(run(reward=1.0, completions=called(None)), run(reward=1.0, completions=called(None)))
        found = await score_group(given, reward)
        if math.isnan(value):
            assert found.rewards == [None, None]
            assert "the reward is nan" in str(found.trajectories[0].reward_error)
        else:
            assert len({one.judgement for one in found.trajectories} - {None}) == 1


async def test_a_weighted_sum_keeps_its_parts_by_name() -> None:
    one = run()
    await score(one, weighted(correct=(2.0, half), brief=(0.2, later)))
    assert one.reward == pytest.approx(1.15)
    assert one.metrics == {"correct": 1.0, "brief": pytest.approx(0.15)}


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (broken, "KeyError: 'answer'"),
        (lambda _run: math.nan, "nan, not a finite number"),
        (lambda _run: 1e30, "the reward is 1e+30, beyond ±1e+06: scale the rewards down"),
        (lambda _run: {"a": 1.0, "b": -2e7}, "the reward is -2e+07"),
        (lambda _run: None, UNDECIDED),
        (lambda _run: NodeRewards(planner=1.0), "rewards by node"),
    ],
)  # fmt: skip
async def test_a_part_that_fails_fails_the_sum(part: object, why: str) -> None:
    one = run()
    await score(one, weighted(correct=(1.0, half), style=(0.0, part)))  # type: ignore[arg-type]
    assert one.reward is None
    assert "the part 'style' failed" in str(one.reward_error)
    assert why in str(one.reward_error)
    assert one.metrics == {}


def test_a_sum_has_parts_and_finite_weights() -> None:
    with pytest.raises(ConfigError, match="at least one part"):
        weighted()
    with pytest.raises(ConfigError, match="'style' is nan"):
        group_sum(style=(math.nan, Ruler(lambda runs: [])))


def rising(runs: Sequence[Trajectory]) -> list[float]:
    return [at / 4 for at in range(len(runs))]


async def test_a_judge_is_added_to_what_the_verifier_gave() -> None:
    blend = group_sum(style=(0.4, Ruler(rising)), tone=(1.0, Ruler(rising)))
    given = group(run(reward=1.0, metrics={"exact": 1.0}), run(reward=0.0), run(reward_error="KeyError: 'answer'"))
    found = await score_group(given, blend)
    assert found.rewards == [1.0, pytest.approx(0.35), None]
    assert found.trajectories[0].metrics["exact"] == 1.0
    assert found.trajectories[1].metrics["style"] == pytest.approx(0.1)
    assert found.trajectories[1].metrics["independent_reward"] == 0.0
    assert found.trajectories[2].reward_error == "KeyError: 'answer'"


async def test_a_judge_that_fails_fails_the_sum_of_its_group() -> None:
    found = await score_group(
        group(run(reward=1.0), run(reward=0.0)), group_sum(style=(0.4, Ruler(lambda runs: [2.0])))
    )
    assert found.rewards == [None, None]
    assert "the part 'style': RULER: the judge function failed" in str(found.trajectories[0].reward_error)


async def test_only_what_the_verifier_left_open_is_judged() -> None:
    asked = []

    def judge(runs: Sequence[Trajectory]) -> list[float]:
        asked.append(len(runs))
        return rising(runs)

    reward = when_undecided(Ruler(judge))
    decided = group(run(reward=1.0), run(reward=0.0))
    assert await score_group(decided, reward) == decided
    assert asked == []
    undecided, failed = run(), run(reward_error="KeyError: 'answer'")
    await score(undecided, lambda _run: None)
    assert undecided.reward_error == UNDECIDED
    found = await score_group(group(run(reward=1.0), undecided, failed), reward)
    assert asked == [3]
    assert found.rewards == [1.0, 0.25, None]
    assert found.trajectories[2].reward_error == "KeyError: 'answer'"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda found: found.model_copy(update={"trajectories": found.trajectories[1:]}), "did not return"),
        (lambda found: group(*[one.model_copy(update={"reward": math.inf}) for one in found.trajectories]), "inf"),
        (lambda found: 1 / 0, "ZeroDivisionError"),
        (lambda found: None, "AttributeError"),
    ],
)  # fmt: skip
async def test_a_group_reward_that_breaks_leaves_the_group_unscored(given: object, why: str) -> None:
    found = await score_group(group(run(reward=1.0), run(reward=0.5)), given)  # type: ignore[arg-type]
    assert found.rewards == [None, None]
    assert why in str(found.trajectories[0].reward_error)
