"""Agents of other frameworks on the real vLLM: one training step takes the rollouts of all of them."""

from __future__ import annotations

import asyncio

import pytest

from art_langgraph import GRPOConfig, TrainerClient, Trajectory, TrajectoryGroup
from tests.support.frameworks.run_agent import run_agent
from tests.support.frameworks.table import FRAMEWORKS, QUESTION, Framework
from tests.support.servers.real_server import Real
from trainer_server.wire import CompletionStatus

pytestmark = [pytest.mark.vllm, pytest.mark.short_model, pytest.mark.usefixtures("found_by_clients")]

HEADER = "| framework | completions | trained | tokens | tool calls | raised |\n|---|---|---|---|---|---|"
AT_ONCE = 2
"""Processes of frameworks. Each imports its packages, which takes a core for seconds."""


async def test_one_step_trains_a_rollout_of_each_framework(real: Real, record_property: pytest.RecordProperty) -> None:
    """The embedded model plays badly: it calls no tools, or wrong ones, so that some frameworks raise. Whatever it said
    is recorded and trained all the same."""
    places = asyncio.Semaphore(AT_ONCE)

    async def run_of(framework: Framework) -> Trajectory:
        async with places:
            (group,) = await run_agent(framework, [QUESTION], real.connection.url, real.connection.api_key, seconds=600)
        return group.trajectories[0]

    async with TrainerClient() as trainer:
        before = await trainer.create_policy("agent", temperature=1.0)
        runs = await asyncio.gather(*map(run_of, FRAMEWORKS))
        completions = 0
        for framework, run in zip(FRAMEWORKS, runs, strict=True):
            assert run.completions, f"{framework.name}: {run.error}"
            rows = [await trainer.completion(call.id or "") for call in run.completions]
            assert {row.rollout for row in rows} == {run.rollout_id}
            assert {row.sampling.temperature for row in rows} == {1.0}
            exact = [row for row in rows if row.status is CompletionStatus.complete and row.untrainable is None]
            assert exact, f"{framework.name}: {[(row.status, row.untrainable) for row in rows]}"
            assert all(len(row.token_ids) == len(row.logprobs) > 0 for row in exact)
            completions += len(exact)
            tokens, raised = sum(len(row.token_ids) for row in exact), (run.error or "–").partition(":")[0]
            cells = (framework.name, len(rows), len(exact), tokens, len(run.tool_calls), raised)
            record_property(HEADER, f"| {' | '.join(map(str, cells))} |")
        for number, run in enumerate(runs):
            run.reward = float(number % 2)
        group = TrajectoryGroup(scenario=runs[0].scenario, trajectories=list(runs))
        step = await trainer.train_step("agent", [group], GRPOConfig(lr=1e-4))
    assert step.version == before.latest + 1
    assert step.metrics["completions"] == completions
    assert set(step.trajectories) == {run.id for run in runs}
    assert step.metrics["logp_gap"] < 0.1
