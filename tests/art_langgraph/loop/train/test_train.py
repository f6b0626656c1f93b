"""train(): what a named run finds again after a crash, and what it passes on to its rollouts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from art_langgraph import GRPOConfig, HeldOut, TimeBudget, TokenBudget, TrainerClient, TrajectoryGroup, train
from tests.support.runs.chat_models import Answering
from tests.support.servers.serving import serving
from trainer_server.common import Connection
from trainer_server.wire import ConfigError, Job, JobStatus, Policy, PolicySpec, StepResult


class Client(TrainerClient):
    """Has jobs of an earlier process, by their keys, and takes every step."""

    retry_for = 60.0

    def __init__(self, **jobs: JobStatus) -> None:
        self.jobs_by_key = {key.replace("_", "-"): status for key, status in jobs.items()}
        self.sent: list[str | None] = []
        self.advantages: dict[str, Any] | None = None
        self.connection = Connection("http://127.0.0.1:1", "key")

    async def find_step(self, policy: str, idempotency_key: str) -> Job | None:
        status = self.jobs_by_key.get(idempotency_key)
        if status is None:
            return None
        result = StepResult(version=7, metrics={}) if status == JobStatus.succeeded else None
        error = "no space left" if status == JobStatus.failed else None
        return Job(
            id=f"job-{idempotency_key}", kind="step", policy=policy, status=status, created=time.time(), result=result,
            error=error,
        )  # fmt: skip

    async def policy(self, name: str) -> Policy:
        return Policy(name=name, spec=PolicySpec(name=name), base_model="base", created=1.0, latest=0)

    async def health(self) -> dict[str, Any]:
        return {}

    async def train_step(self, policy: str, groups: Sequence[Any], *_: Any, **options: Any) -> StepResult:
        self.sent.append(options["idempotency_key"])
        self.advantages = options["advantages"]
        return StepResult(version=8, metrics={"job": {"seconds": {}}})


def graph() -> Any:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await Answering().ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


async def versions(client: Client, **options: Any) -> list[int]:
    options = {"steps": 1, "groups_per_step": 1, "n": 2, "temperature": None, "progress": False, **options}
    return [
        record.result.version
        async for record in train(
            options.pop("graph", graph()), ["a"], policy="agent", reward=lambda _: 1.0, client=client, **options
        )
    ]


async def test_a_step_that_the_server_has_accepted_is_not_taken_again() -> None:
    client = Client(mine_step_1=JobStatus.succeeded)
    assert await versions(client, run="mine") == [7]
    assert client.sent == []


@pytest.mark.parametrize("status", [JobStatus.failed, JobStatus.cancelled])
async def test_a_step_whose_job_failed_is_taken_again(status: JobStatus, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(mine_step_1=status)
    assert await versions(client, run="mine") == [8]
    assert client.sent == ["mine-step-1-attempt-2"]
    assert f"step 1 of 'mine': job-mine-step-1 {status.value}" in caplog.text
    client = Client(mine_step_1=status, mine_step_1_attempt_2=status)
    assert await versions(client, run="mine") == [8]
    assert client.sent == ["mine-step-1-attempt-3"]
    client = Client(mine_step_1=status, mine_step_1_attempt_2=JobStatus.succeeded)
    assert await versions(client, run="mine") == [7]


async def test_a_function_gives_the_advantages_of_the_groups_of_a_step() -> None:
    client, runs = Client(), list[str]()

    async def opposite(groups: Sequence[TrajectoryGroup]) -> list[list[float]]:
        runs.extend(run.id for group in groups for run in group.trajectories)
        return [[-float(at) for at, _ in enumerate(group.trajectories)] for group in groups]

    assert await versions(client, advantages=opposite) == [8]
    assert client.advantages == {runs[0]: 0.0, runs[1]: -1.0}
    assert await versions(client) == [8]
    assert client.advantages is None


async def test_a_function_that_gives_no_advantages_ends_the_training_before_a_step_is_sent() -> None:
    client = Client()
    with pytest.raises(ConfigError, match="the advantage is nan, not a finite number"):
        await versions(client, advantages=lambda groups: [[float("nan")] * 2])
    config = GRPOConfig.model_validate({"distill": {"teacher": "base", "rewards": False}})
    with pytest.raises(ConfigError, match=r"config\.distill leaves out"):
        await versions(client, advantages=lambda groups: [[1.0] * 2], config=config)
    assert client.sent == []


async def test_a_run_ends_where_a_rule_says_so() -> None:
    assert await versions(Client(), steps=5, stop_when=lambda records: "enough" if len(records) == 2 else None) == [
        8,
        8,
    ]
    assert await versions(Client(), steps=2, stop_when=[TimeBudget(minutes=1), TokenBudget(100)]) == [8, 8]


async def test_a_run_without_a_name_gets_new_keys() -> None:
    client = Client()
    await versions(client)
    await versions(client)
    assert len(set(client.sent)) == 2


async def test_rollouts_get_config_answers_to_interrupts_and_metadata() -> None:
    async def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        seen.append((config.get("tags"), interrupt("which?")))
        return {"messages": [await Answering().ainvoke(state["messages"])]}

    async def beside(state: MessagesState) -> dict[str, Any]:
        also.append(interrupt("and which?"))
        return {"messages": []}

    seen: list[Any] = []
    also: list[Any] = []
    graph = StateGraph(MessagesState).add_node("model", node).add_node("beside", beside)
    asking = graph.add_edge(START, "model").add_edge(START, "beside").compile(InMemorySaver())
    records = [
        record
        async for record in train(
            asking, ["a"], policy="agent", reward=lambda _: 1.0, client=Client(), steps=1, groups_per_step=1, n=2,
            temperature=None, progress=False, resume=lambda values: f"answer to {values}",
            run_config={"tags": ["mine"]}, metadata={"who": "me"},
        )
    ]  # fmt: skip
    assert seen == [(["mine"], "answer to ['which?']")] * 2
    assert also == ["answer to ['and which?']"] * 2, "both wait at once, and each gets its own answer"
    runs = [run for record in records for group in record.groups for run in group.trajectories]
    assert [run.metadata for run in runs] == [{"who": "me"}] * 2


class CountingGraph:
    """A graph that counts how many of its runs there are at once, at most."""

    def __init__(self) -> None:
        self.most = self._running = 0
        self.graph = StateGraph(MessagesState).add_node("model", self._node).add_edge(START, "model").compile()

    async def _node(self, state: MessagesState) -> dict[str, Any]:
        self._running += 1
        self.most = max(self.most, self._running)
        for _ in range(20):
            await asyncio.sleep(0)
        self._running -= 1
        return {"messages": [await Answering(policy="agent@0").ainvoke(state["messages"])]}


@pytest.mark.parametrize(("concurrency", "runs"), [(5, 5), (None, 32)])
async def test_by_default_as_many_runs_go_on_as_the_engines_compute(concurrency: int | None, runs: int) -> None:
    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"concurrency": concurrency})

    counting = CountingGraph()
    client = Client()
    with serving(Starlette(routes=[Route("/health", health)])) as url:
        client.connection = Connection(url, "key")
        assert await versions(client, graph=counting.graph, steps=1, n=40) == [8]
    assert counting.most == runs


async def test_a_training_looks_once_at_what_the_server_computes() -> None:
    requests = []

    async def health(request: Request) -> JSONResponse:
        requests.append(request)
        return JSONResponse({"concurrency": 5, "overlaps": False})

    client = Client()
    with serving(Starlette(routes=[Route("/health", health)])) as url:
        client.connection = Connection(url, "key")
        await versions(client, steps=2, max_concurrency=None, max_staleness=None)
    assert len(requests) == 1


async def test_training_and_evaluation_together_run_no_more_than_max_concurrency() -> None:
    counting = CountingGraph()
    held_out = HeldOut(["b", "c", "d"], temperature=None)
    ahead = {"max_staleness": 2, "steps": 4, "held_out": held_out, "evaluate_every": 1, "n": 3}
    assert await versions(Client(), graph=counting.graph, max_concurrency=3, **ahead) == [8, 8, 8, 8]
    assert counting.most == 3


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"n": 0}])
async def test_no_step_and_no_run_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"steps=. and n=. must be at least 1; evaluate\(\) measures"):
        await versions(Client(), **wrong)


async def test_one_run_of_each_scenario_ends_with_the_first_step_unless_that_learns_something() -> None:
    class Comparing(Client):
        async def train_step(self, policy: str, groups: Sequence[Any], *_: Any, **options: Any) -> StepResult:
            self.sent.append(options["idempotency_key"])
            return StepResult(version=7, metrics={"job": {"seconds": {}}, "skipped": "fewer than two rewards"})

    client = Comparing()
    with pytest.raises(ConfigError, match=r"n=1: the step could learn nothing \(fewer than two rewards\).*give n=2"):
        await versions(client, n=1, steps=3)
    assert len(client.sent) == 1
    assert await versions(Comparing(), n=2, steps=3) == [7, 7, 7]
    assert await versions(Client(), n=1, steps=3) == [8, 8, 8], "a teacher scores the tokens, say"


@pytest.mark.parametrize("wrong", [{"groups_per_step": 0}, {"first_step": 0}, {"groups_per_step": 2}])
async def test_a_setting_that_gives_no_step_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="groups_per_step"):
        await versions(Client(), **wrong)
