"""Agents of other frameworks inside rollouts: every model call is recorded and trained, and nothing else."""

from __future__ import annotations

import asyncio
import json
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from art_langgraph import GRPOConfig, TrainerClient, Trajectory, TrajectoryGroup, rollout
from tests.support.frameworks.environments import framework_environment
from tests.support.frameworks.request_log import RequestLog, SentRequest
from tests.support.frameworks.run_agent import SCRIPTS, run_agent
from tests.support.frameworks.table import ANSWER, FRAMEWORKS, QUESTION, Framework
from tests.support.servers.trainer_server import TOKEN, TrainerServer, trainer_server_on

pytestmark = pytest.mark.servers

HEADER = "| framework | API | parameters | roles | calls | lost: calls | raised |\n|---|---|---|---|---|---|---|"
POPULATION = [("Oslo", "700000"), ("Rome", "2750000")]
NO_SUCH_TOOL = "call nothing {}"
PLAIN = {"model", "messages", "input", "tools", "stream"}
"""Parameters that every request has."""


@pytest.fixture(scope="module")
def log() -> list[SentRequest]:
    return []


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, base_model: Path, log: list[SentRequest]
) -> Iterator[TrainerServer]:
    """A server that notes what clients send, with the policy `agent`."""
    home = tmp_path_factory.mktemp("home")
    with trainer_server_on(home, base_model, around=lambda app: RequestLog(app, log)) as running:
        with running.http() as http:
            assert http.post("/api/policies", json={"name": "agent", "temperature": 1.0}).status_code == 201
        yield running


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.script)
async def test_rollouts_at_once_are_captured_and_trained(
    server: TrainerServer, log: list[SentRequest], framework: Framework, record_property: pytest.RecordProperty
) -> None:
    """Three rollouts go as they should. In a fourth one the model says nothing that its framework can use: whatever the
    framework makes of that, the answers are trained."""
    marks = [f"({framework.script} {name})" for name in ("one", "two", "three", "lost")]
    useless = NO_SUCH_TOOL if framework.called else "I do not know."
    server.engine["scripts"] = {mark: list(framework.answers) for mark in marks[:3]} | {marks[3]: [useless] * 20}
    log.clear()
    groups = await run_agent(framework, [f"{QUESTION} {mark}" for mark in marks], server.url, TOKEN)
    runs = [run for group in groups for run in group.trajectories]
    lost = runs[3]
    assert [run.error for run in runs[:3]] == [None] * 3
    async with TrainerClient(server.url, TOKEN) as trainer:
        for mark, run in zip(marks[:3], runs[:3], strict=True):
            await check(trainer, framework, mark, run)
        check_requests(framework, [request for request in log if request.rollout != lost.rollout_id], runs[:3])
        assert len(lost.completions) == sum(request.rollout == lost.rollout_id for request in log) > 0
        for run, reward in zip(runs, (1.0, 0.5, 0.5, 0.0), strict=True):
            run.reward = reward
        before = (await trainer.policy("agent")).latest
        step = await trainer.train_step(
            "agent", [TrajectoryGroup(scenario=runs[0].scenario, trajectories=runs)], GRPOConfig(max_staleness=100)
        )
    assert step.version == before + 1
    assert step.metrics["completions"] == 3 * len(framework.answers) + len(lost.completions)
    assert set(step.trajectories) == {run.id for run in runs}
    record_property(HEADER, row(framework, log, lost))


async def test_a_program_in_an_environment_of_its_own_is_captured(
    server: TrainerServer, log: list[SentRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what `run.environment` has, in a process that knows nothing of a rollout."""
    framework = next(one for one in FRAMEWORKS if one.script == "ag2_agent")
    python = framework_environment(framework.environment)
    monkeypatch.setenv("AGENT_COMMAND", shlex.join([str(python), str(SCRIPTS / "ag2_program.py")]))
    monkeypatch.setenv("ART_BASE_URL", server.url)
    monkeypatch.setenv("ART_API_KEY", TOKEN)
    agent = runpy.run_path(str(SCRIPTS / "other_process.py"))["agent"]
    marks = [f"(program {number})" for number in range(2)]
    server.engine["scripts"] = {mark: list(framework.answers) for mark in marks}
    log.clear()
    runs = await asyncio.gather(*(rollout(agent, f"{QUESTION} {mark}") for mark in marks))
    async with TrainerClient() as trainer:
        for mark, run in zip(marks, runs, strict=True):
            assert run.error is None
            await check(trainer, framework, mark, run)
    check_requests(framework, log, runs)
    assert {request.path for request in log} == {f"/rollouts/{run.rollout_id}/v1/chat/completions" for run in runs}


async def check(trainer: TrainerClient, framework: Framework, mark: str, run: Trajectory) -> None:
    """A rollout has its own model calls, each with the tokens that were sampled, its tool calls and their results."""
    assert ANSWER in run.final_text
    assert len(run.completions) == len(framework.answers)
    for answer, call in zip(framework.answers, run.completions, strict=True):
        assert call.id
        ledger = await trainer.completion(call.id)
        assert ledger.rollout == run.rollout_id
        assert ledger.untrainable is None
        assert ("grammar" in ledger.constrained) == framework.grammar
        assert "".join(map(chr, ledger.token_ids)) == answer
        asked = json.dumps(ledger.request["messages"])
        assert mark in asked
        assert asked.count(mark.split()[0]) == asked.count(mark), "messages of another rollout"
        assert call.message == ledger.message
    assert tuple(call.tool for call in run.tool_calls) == framework.called
    looked_up = [(call.arguments, call.result) for call in run.tool_calls if call.tool == "population"]
    results = framework.result if framework.returned else None
    cities = [({"city": city}, results and results % people) for city, people in POPULATION]
    assert looked_up == (cities if framework.called else [])


def check_requests(framework: Framework, log: list[SentRequest], runs: list[Trajectory]) -> None:
    """The requests are those that the table says, and each of them is in the rollout that it was made in."""
    assert len(log) == sum(len(run.completions) for run in runs)
    assert {request.api for request in log} == {framework.api}
    assert {request.streams for request in log} == {framework.streams}
    assert {request.rollout for request in log} == {run.rollout_id for run in runs}
    assert {request.body["model"] for request in log} == {"agent"}
    assert {name for request in log for name in request.body} - PLAIN == set(framework.sends)


def row(framework: Framework, log: list[SentRequest], lost: Trajectory) -> str:
    """How a framework has a conversation: a row for the report of the tests."""
    messages = [one for request in log for one in request.body.get("messages") or request.body["input"]]
    roles = ", ".join(sorted({str(one.get("role") or one.get("type")) for one in messages}))
    raised = (lost.error or "–").partition(":")[0]
    cells = (framework.name, f"/v1{framework.api}", ", ".join(framework.sends), roles, len(framework.answers))
    return f"| {' | '.join(map(str, (*cells, len(lost.completions), raised)))} |"
