"""Advantages that a request has of its own: GRPO by hand gives the built-in step, and nothing wrong is trained."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from art_langgraph import NodeRewards, Scenario, Trajectory, TrajectoryGroup
from art_langgraph.credit import Advantage, advantages_by_run, group_refs
from art_langgraph.trajectory import CompletionCall
from tests.support.training.worker import make_worker, step
from trainer_server.training.grpo.batch import EPSILON
from trainer_server.training.worker import Worker
from trainer_server.wire import GroupRef, TrajectoryRef, wrong_reward


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return make_worker(tmp_path)


def runs(*rewards: float | None, nodes: Sequence[str] = ("model",)) -> TrajectoryGroup:
    """Runs with one completion of the worker's ledger each, in turns of the nodes."""
    scenario = Scenario(id="s", input="x")
    return TrajectoryGroup(
        scenario=scenario,
        trajectories=[
            Trajectory(
                id=f"t{at}",
                scenario=scenario,
                reward=reward,
                completions=[CompletionCall(id=f"c{at}", model="p", node=node, path=[node], started=0.0)],
            )
            for at, (reward, node) in enumerate(zip(rewards, [*nodes] * 9, strict=False))
        ],
    )


def grpo(groups: Sequence[TrajectoryGroup]) -> list[list[Advantage | None]]:
    """Plain GRPO: (reward − mean) / (standard deviation + ε) of the runs that have a reward."""
    result: list[list[Advantage | None]] = []
    for group in groups:
        rewards = np.array([reward for reward in group.rewards if reward is not None])
        values = iter(((rewards - rewards.mean()) / (rewards.std(ddof=1) + EPSILON)).tolist())
        result.append([None if reward is None else next(values) for reward in group.rewards])
    return result


def adapters(worker: Worker) -> dict[str, torch.Tensor]:
    return load_file(worker.store.directory("p", worker.store.versions("p")[-1]) / "adapter_model.safetensors")


@pytest.mark.parametrize("rewards", [(1.0, 0.0, 0.3), (1.0, None, 0.3)])
def test_plain_grpo_as_a_function_gives_bit_by_bit_the_step_of_the_built_in(
    tmp_path: Path, rewards: tuple[float | None, ...]
) -> None:
    groups, found = [runs(*rewards)], []
    for name, advantages in (("built-in", None), ("own", advantages_by_run(groups, grpo(groups)))):
        worker = make_worker(tmp_path / name)
        result = step(worker, group_refs(groups, advantages=advantages), lr=1e-2, num_minibatches=2).result
        found.append((adapters(worker), result.metrics))
    (plain, metrics), (own, own_metrics) = found
    assert all(torch.equal(plain[name], own[name]) for name in plain)
    for name in ("loss", "grad_norm", "reward_mean", "advantage_max", "trajectories_skipped", "groups_skipped"):
        assert metrics[name] == own_metrics[name], name


def test_an_advantage_is_used_as_it_is(worker: Worker) -> None:
    groups = [runs(1.0, 1.0)]
    refs = group_refs(groups, advantages={"t0": 2.0, "t1": -0.5})
    metrics = step(worker, refs, scale_rewards="batch").result.metrics
    assert metrics["advantage_max"] == 2.0
    assert metrics["advantage_mean"] == 0.75
    assert metrics["reward_mean"] == 1.0, "the rewards stay what they are"


def test_the_advantages_of_nodes_train_their_completions_only(worker: Worker) -> None:
    groups = [runs(0.0, 0.0, 0.0, nodes=("white", "black", "clock"))]
    refs = group_refs(groups, advantages={f"t{at}": {"white": 1.0, "black": -1.0} for at in range(3)})
    metrics = step(worker, refs).result.metrics
    assert metrics["completions"] == 2
    assert (metrics["advantage_mean"], metrics["advantage_std"]) == (0.0, 1.0)


def test_without_any_advantage_there_is_nothing_to_learn(worker: Worker) -> None:
    refs = group_refs([runs(1.0, 0.0)], advantages={"t0": 0.0, "t1": 0.0})
    result = step(worker, refs).result
    assert result.version == 0
    assert result.metrics["groups_skipped_by"] == {"zero_advantages": 1}
    assert "all advantages are 0" in result.metrics["skipped"]


def of(*references: tuple[str, float | None, float | None, list[str]]) -> list[GroupRef]:
    trajectories = [
        TrajectoryRef(id=id, reward=reward, advantage=advantage, completions=texts)
        for id, reward, advantage, texts in references
    ]
    return [GroupRef(scenario_id="s", trajectories=trajectories)]


@pytest.mark.parametrize(
    ("refs", "message"),
    [
        (of(("a", 1.0, 1.0, ["c0"]), ("b", 0.0, None, ["c1"])), "'b' of the group 's' has a reward and no advantage"),
        (of(("a", 1.0, 1e7, ["c0"]), ("b", 0.0, -1.0, ["c1"])), "'a': the advantage is 1e\\+07, beyond ±1e\\+06"),
        (of(("a", 1.0, 1.0, ["c0"]), ("a", 1.0, -1.0, ["c0"])), "its completion 'c0' two advantages, 1 and -1"),
        (of(("a", 1.0, 1.0, ["c0"]), ("b", 1.0, -1.0, ["c0"])), "have the advantages 1 and -1: send each run once"),
    ],
)
def test_advantages_that_cannot_be_trained_fail_the_step(worker: Worker, refs: list[GroupRef], message: str) -> None:
    error = step(worker, refs).error
    assert re.search(message, error), error
    assert worker.store.versions("p") == [0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_no_advantage(value: float) -> None:
    with pytest.raises(ValidationError, match="advantage"):
        of(("a", 1.0, value, ["c0"]))


def test_a_run_without_a_reward_is_not_trained_with_an_advantage_either(worker: Worker) -> None:
    refs = of(("a", 1.0, 1.0, ["c0"]), ("b", None, 5.0, ["c1"]), ("c", None, None, ["c2"]))
    assert wrong_reward(refs) is None
    metrics = step(worker, refs).result.metrics
    assert (metrics["trajectories_trained"], metrics["completions"]) == (1, 1)
    assert metrics["trajectories_skipped"] == {"no_reward": 2}


def test_rewards_by_node_make_way_for_an_advantage_of_the_run(worker: Worker) -> None:
    group = runs(1.0, 0.0)
    for run in group.trajectories:
        run.node_rewards = NodeRewards(elsewhere=1.0)
    values: dict[str, Any] = {"t0": 1.0, "t1": -1.0}
    assert step(worker, group_refs([group], advantages=values)).result.metrics["completions"] == 2
