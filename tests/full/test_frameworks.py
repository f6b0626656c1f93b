"""Agents of other frameworks on the real vLLM: one training step takes the rollouts of all of them."""

from __future__ import annotations

import asyncio

import pytest

from art_langgraph import GRPOConfig, TrainerClient, Trajectory, TrajectoryGroup
from tests.support.frameworks.run_agent import run_agent
from tests.support.frameworks.table import FRAMEWORKS, QUESTION, Framework
from tests.support.real_server import Real
from trainer_server.wire import CompletionStatus

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.usefixtures("found_by_clients")]

HEADER = "| framework | completions | tokens | tool calls | raised |\n|---|---|---|---|---|"
AT_ONCE = 2
"""Processes of frameworks. Each imports its packages, which takes a core for seconds."""


async def test_one_step_trains_the_rollouts_of_all_frameworks(
    real: Real, record_property: pytest.RecordProperty
) -> None:
    """The embedded model plays badly: it calls no tools, or wrong ones, so that some frameworks raise. Whatever it said
    is recorded and trained all the same."""
    places = asyncio.Semaphore(AT_ONCE)

    async def runs_of(framework: Framework) -> list[Trajectory]:
        async with places:
            (group,) = await run_agent(
                framework, [QUESTION], real.connection.url, real.connection.api_key, n=2, seconds=600
            )
        return group.trajectories

    async with TrainerClient() as trainer:
        before = await trainer.create_policy("agent", temperature=1.0)
        found = await asyncio.gather(*map(runs_of, FRAMEWORKS))
        completions = 0
        for framework, runs in zip(FRAMEWORKS, found, strict=True):
            rows = [await trainer.completion(call.id or "") for run in runs for call in run.completions]
            assert all(run.completions for run in runs), [run.error for run in runs]
            assert {row.rollout for row in rows} == {run.rollout_id for run in runs}
            assert {row.sampling.temperature for row in rows} == {1.0}
            assert {(row.status, row.untrainable) for row in rows} == {(CompletionStatus.complete, None)}
            assert all(len(row.token_ids) == len(row.logprobs) > 0 for row in rows)
            completions += len(rows)
            tokens, tools = sum(len(row.token_ids) for row in rows), sum(len(run.tool_calls) for run in runs)
            raised = ", ".join(sorted({str(run.error).partition(":")[0] for run in runs if run.error})) or "–"
            record_property(HEADER, f"| {framework.name} | {len(runs)} | {len(rows)} | {tokens} | {tools} | {raised} |")
        runs = [run for group in found for run in group]
        for number, run in enumerate(runs):
            run.reward = float(number % 2)
        group = TrajectoryGroup(scenario=runs[0].scenario, trajectories=runs)
        step = await trainer.train_step("agent", [group], GRPOConfig(lr=1e-4))
    assert step.version == before.latest + 1
    assert step.metrics["completions"] == completions
    assert set(step.trajectories) == {run.id for run in runs}
    assert step.metrics["logp_gap"] < 0.1
