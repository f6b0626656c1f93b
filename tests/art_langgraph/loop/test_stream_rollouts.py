"""train() with max_staleness: long runs go on across steps, and what was complete before a kill is not lost."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from langgraph.graph import START, MessagesState, StateGraph
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from art_langgraph import (
    GRPOConfig,
    HeldOut,
    StepRecord,
    TrainerClient,
    Trajectory,
    TrajectoryGroup,
    TrajectoryStore,
    train,
)
from tests.support.killed import stream as killed_stream
from tests.support.patience import PATIENCE
from tests.support.runs.chat_models import Answering
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.common import Connection
from trainer_server.wire import ConfigError, Job, JobStatus, Policy, PolicySpec, StepResult


class Trainer(TrainerClient):
    """Takes every step, and keeps its jobs by their keys, as a server does that outlives its clients."""

    retry_for = 60.0

    def __init__(self) -> None:
        self.version = 0
        self.sent: list[list[TrajectoryGroup]] = []
        self.jobs_by_key: dict[str, Job] = {}
        self.is_down = False
        self.skipped_steps = set[int]()
        self.connection = Connection("http://127.0.0.1:1", "key")
        self.during: Callable[[int], Any] = lambda step: asyncio.sleep(0)
        """Awaited while a step is computed, with its number."""

    async def policy(self, name: str) -> Policy:
        return Policy(name=name, spec=PolicySpec(name=name), base_model="base", created=1.0, latest=self.version)

    async def health(self) -> dict[str, Any]:
        self.is_down = False
        return {"ready": True}

    async def find_step(self, policy: str, idempotency_key: str) -> Job | None:
        return self.jobs_by_key.get(idempotency_key)

    async def result(self, job: Job | str, **_: Any) -> StepResult:
        assert isinstance(job, Job)
        assert isinstance(job.result, StepResult)
        return job.result

    async def train_step(self, policy: str, groups: Sequence[Any], *_: Any, **options: Any) -> StepResult:
        self.sent.append(list(groups))
        result = StepResult(version=self.version + 1, metrics={"job": {"seconds": {}}})
        if len(self.sent) in self.skipped_steps:
            result = StepResult(version=self.version, metrics={"job": {"seconds": {}}, "skipped": "nothing to learn"})
        key = options["idempotency_key"]
        self.jobs_by_key[key] = Job(
            id=f"job-{key}", kind="step", policy=policy, status=JobStatus.succeeded, created=1.0, result=result
        )
        await self.during(len(self.sent))
        self.version = result.version
        return result


class Answer(Answering):
    """Answers as the newest version."""

    trainer: Any = None

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        result = super()._generate(messages)
        version = self.trainer.version
        result.generations[0].message.response_metadata["model_name"] = f"agent@{version}"
        return result.model_copy(update={"llm_output": {"model_name": f"agent@{version}"}})


Pause = Callable[[str, int], Any]
"""Awaited in a run, after the answer: gets the text of the scenario, and how many runs of it were before."""


def graph(trainer: Trainer, pause: Pause) -> Any:
    counts = defaultdict[str, int](int)

    async def node(state: MessagesState) -> dict[str, Any]:
        text = str(state["messages"][0].text)
        run = counts[text]
        counts[text] += 1
        if trainer.is_down:
            raise OSError("nobody answers")
        answer = await Answer(trainer=trainer).ainvoke(state["messages"])
        await pause(text, run)
        return {"messages": [answer]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


async def no_pause(text: str, run: int) -> None:
    await asyncio.sleep(0)


def reward_of_runs() -> Callable[[Trajectory], float]:
    """Every other run of a scenario succeeds; one that raised has no reward."""
    counts = defaultdict[str, int](int)

    def reward(run: Trajectory) -> float:
        if run.error is not None:
            raise ValueError("it has no end")
        counts[run.scenario.id] += 1
        return float(counts[run.scenario.id] % 2)

    return reward


async def steps(
    trainer: Trainer,
    pause: Pause = no_pause,
    scenarios: str = "abcdefgh",
    records: list[StepRecord] | None = None,
    **options: Any,
) -> list[StepRecord]:
    """All steps of a training. records: gets them too, one after the other."""
    options = {"steps": 3, "groups_per_step": 2, "n": 2, "max_staleness": 1, "temperature": None, "shuffle": False,
               "reward": reward_of_runs(), "progress": False, **options}  # fmt: skip
    records = [] if records is None else records
    async for record in train(graph(trainer, pause), list(scenarios), policy="agent", client=trainer, **options):
        records.append(record)
    return records


def names(groups: Sequence[TrajectoryGroup]) -> list[str]:
    return [str(group.scenario.input) for group in groups]


def with_a_long_run() -> tuple[Trainer, Callable[[str, int], Awaitable[None]]]:
    """A trainer during whose third step the first run of scenario "a" ends, and what makes that run wait."""
    trainer, last = Trainer(), asyncio.Event()

    async def pause(text: str, run: int) -> None:
        if (text, run) == ("a", 0):
            await last.wait()

    async def during(step: int) -> None:
        if step == 3:
            last.set()
        for _ in range(200):
            await asyncio.sleep(0)

    trainer.during = during
    return trainer, pause


async def test_a_long_run_goes_on_across_steps_with_its_version(caplog: pytest.LogCaptureFixture) -> None:
    trainer, pause = with_a_long_run()
    records = await steps(trainer, pause, steps=4)
    taken = [name for record in records for name in names(record.groups)]
    assert sorted(taken) == list("abcdefgh"), "each group is in a step, and none twice"
    assert "a" in names(records[3].groups), "the long one is taken when it is complete"
    (long,) = [group for group in records[3].groups if group.scenario.input == "a"]
    assert [run.versions for run in long.trajectories] == [{"agent": [0]}] * 2
    assert [sum(record.ages.values()) for record in records] == [2] * 4
    assert records[3].ages[3] == 1
    (warning,) = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
    assert "3 versions old (max_staleness=1)" in warning
    assert "used with their importance weights" in warning
    assert all(record.seconds["wait"] >= 0 and record.seconds["slots"] >= 0 for record in records)


async def test_a_group_that_is_too_old_for_the_settings_is_counted_and_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer, pause = with_a_long_run()
    records = await steps(trainer, pause, steps=4, config=GRPOConfig(max_staleness=1))
    assert [record.drops for record in records] == [0, 0, 0, 1]
    assert "a" not in [name for record in records for name in names(record.groups)][:-1]
    assert [len(record.groups) for record in records] == [2] * 4, "another group takes its place"
    assert max(age for record in records for age in record.ages) == 1
    assert "left out" in caplog.text
    assert records[3].summary()["drops"] == 1


async def events(staleness: int) -> list[str]:
    """The runs and steps of a training with one run at once, in the order in which they begin and end."""
    trainer, found = Trainer(), list[str]()

    async def pause(text: str, run: int) -> None:
        found.append(f"run {text}")

    async def during(step: int) -> None:
        found.append(f"train {step}")
        for _ in range(300):
            await asyncio.sleep(0)
        while staleness and step == 1 and "run b" not in found:
            await asyncio.sleep(0.001)
        found.append(f"trained {step}")

    trainer.during = during
    options: dict[str, Any] = {"steps": 4, "groups_per_step": 1, "n": 1, "max_concurrency": 1}
    await steps(trainer, pause, max_staleness=staleness, **options)
    return found


async def test_by_default_rollouts_and_training_take_turns() -> None:
    assert await events(0) == [
        f"{what}" for step, text in enumerate("abcd", 1) for what in (f"run {text}", f"train {step}", f"trained {step}")
    ]


@pytest.mark.parametrize("staleness", [1, 2, 9])
async def test_rollouts_go_ahead_by_no_more_than_the_staleness(staleness: int) -> None:
    found = await events(staleness)
    assert [event for event in found if event.startswith("train ")] == [f"train {step}" for step in range(1, 5)]
    for number, text in enumerate("abcd"):
        trained = sum(event.startswith("trained") for event in found[: found.index(f"run {text}")])
        assert number - trained <= staleness
    assert found.index("run b") < found.index("trained 1"), "and they do go ahead"


@pytest.mark.parametrize("staleness", [1, 3])
async def test_without_overtaking_no_group_is_older_than_asked(staleness: int) -> None:
    trainer = Trainer()
    records = await steps(trainer, steps=8, max_staleness=staleness, max_concurrency=2)
    assert max(age for record in records for age in record.ages) <= staleness
    assert [len(groups) for groups in trainer.sent] == [2] * 8
    with pytest.raises(ConfigError, match="in_flight=2 must be at least 1, and needs max_staleness=1"):
        await steps(trainer, max_staleness=0, in_flight=2)


@pytest.mark.parametrize(("options", "version"), [({}, "latest"), ({"pins": "follow"}, "follow")])
async def test_runs_ask_for_the_newest_version_once_or_at_each_call(options: dict[str, Any], version: str) -> None:
    records = await steps(Trainer(), steps=1, **options)
    versions = [run.requested_version for group in records[0].groups for run in group.trajectories]
    assert versions == [{"agent": version}] * 4
    with pytest.raises(ConfigError, match="pins='follow' must be 'run', or 'follow' with max_staleness=1 or more"):
        await steps(Trainer(), max_staleness=0, pins="follow")


async def test_a_run_that_follows_is_left_out_only_where_its_newest_completion_is_too_old() -> None:
    """Two calls, the second during the third step: it is young enough."""
    trainer, release = Trainer(), asyncio.Event()

    async def pause(text: str, run: int) -> None:
        if text == "a":
            await release.wait()
            await Answer(trainer=trainer).ainvoke("go on")

    async def during(step: int) -> None:
        if step == 3:
            release.set()
        for _ in range(200):
            await asyncio.sleep(0)

    trainer.during = during
    records = await steps(trainer, pause, steps=4, pins="follow", config=GRPOConfig(max_staleness=1))
    assert sum(record.drops for record in records) == 0
    (long,) = [group for group in records[3].groups if group.scenario.input == "a"]
    for run in long.trajectories:
        oldest, newest = run.versions["agent"]
        assert (oldest, newest in (2, 3)) == (0, True), "the second call may come before or after the third version"
    assert records[3].ages[3] == 1, "its age is that of its oldest completion"


@pytest.mark.parametrize(("told", "streams"), [({"overlaps": True}, True), ({"overlaps": False}, False), ({}, False)])
async def test_groups_stream_by_default_where_the_trainer_has_gpus_of_its_own(
    told: dict[str, bool], streams: bool
) -> None:
    async def health(request: Request) -> JSONResponse:
        return JSONResponse(told)

    trainer = Trainer()
    with serving(Starlette(routes=[Route("/health", health)])) as url:
        trainer.connection = Connection(url, "key")
        records = await steps(trainer, max_staleness=None)
        assert ["wait" in record.seconds for record in records] == [streams] * 3
        assert not any("wait" in record.seconds for record in await steps(trainer, max_staleness=0))


async def test_what_is_too_old_for_the_settings_alone_is_left_out_too() -> None:
    records = await steps(Trainer(), steps=4, config=GRPOConfig(max_staleness=0))
    assert {age for record in records for age in record.ages} == {0}
    assert [len(record.groups) for record in records] == [2] * 4


async def test_groups_that_nobody_answered_run_once_more_when_the_server_is_back() -> None:
    trainer = Trainer()

    async def during(step: int) -> None:
        trainer.is_down = step == 1
        for _ in range(200):
            await asyncio.sleep(0)

    trainer.during = during
    records = await steps(trainer, steps=3, groups_per_step=1)
    assert [record.failures for record in records] == [None] * 3


@pytest.mark.parametrize("hanging", [1, 2])
async def test_a_group_goes_on_without_a_hanging_run_and_repeats_several(hanging: int) -> None:
    trainer = Trainer()

    async def pause(text: str, run: int) -> None:
        if text == "a" and run < hanging:
            await asyncio.sleep(60)

    records = await steps(trainer, pause, steps=1, groups_per_step=1, n=4, timeout=0.2)
    (record,) = records
    runs = record.groups[0].trajectories
    assert sum(run.scored for run in runs) == (3 if hanging == 1 else 4)
    assert all(run.scored for run in runs)
    assert record.timeouts == hanging
    assert f"{hanging} runs over the timeout left out" in str(record)


async def test_groups_that_teach_nothing_are_replaced_and_explored() -> None:
    def reward(run: Trajectory) -> float:
        return 0.0 if run.scenario.input in ("a", "c") else float(len(run.id) + next(counter)) % 2

    counter = iter(range(10**6))
    trainer = Trainer()
    records = await steps(trainer, steps=2, reward=reward, dynamic_sampling=1, max_concurrency=1)
    assert [record.informative for record in records] == [2, 2]
    assert [len(record.groups) - record.replaced for record in records] == [2, 2]
    assert sum(record.replaced for record in records) == 2
    assert len(trainer.sent) == 2


async def test_evaluations_take_their_slots_from_the_same_limit() -> None:
    trainer, running, most = Trainer(), 0, 0

    async def pause(text: str, run: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    held_out = HeldOut(["x", "y", "z"], temperature=None, reward=lambda _: 1.0)
    records = await steps(trainer, pause, steps=4, held_out=held_out, evaluate_every=1, max_concurrency=3, in_flight=8)
    assert most == 3
    assert all(record.evaluation is not None for record in records)


class Killed(BaseException):
    """What a kill is to the loop: nothing after it happens."""


@pytest.mark.parametrize("moment", ["before the job", "after the job", "after a job that made no version"])
async def test_after_a_kill_no_group_is_trained_twice_and_none_that_was_complete_is_lost(
    tmp_path: Path, moment: str
) -> None:
    store, trainer = TrajectoryStore(tmp_path / "runs.sqlite"), Trainer()
    hanging = asyncio.Event()

    async def pause(text: str, run: int) -> None:
        if text == "d":
            await hanging.wait()

    async def during(step: int) -> None:
        if step == 2:
            while len(store) < 6:  # a group of a later step is complete by then
                await asyncio.sleep(0.001)
            if moment == "before the job":
                trainer.jobs_by_key.popitem()
            elif moment == "after the job":
                trainer.version += 1
            raise Killed

    trainer.during = during
    trainer.skipped_steps = {2} if moment == "after a job that made no version" else set()
    options: dict[str, Any] = {"run": "mine", "store": store, "steps": 4, "groups_per_step": 1}
    with pytest.raises(Killed):
        await steps(trainer, pause, **options)
    stored = {run.scenario.input for run in store}
    assert "d" not in stored
    assert len(stored) >= 3
    if moment == "before the job":
        trainer.sent.pop()
    before = len(store)
    trainer.during = lambda step: asyncio.sleep(0)
    records = await steps(trainer, **options)
    assert [record.step for record in records] == [1, 2, 3, 4]
    trained = [run.id for groups in trainer.sent for group in groups for run in group.trajectories]
    assert len(trained) == len(set(trained)), "no group twice"
    assert [len(groups) for groups in trainer.sent] == [1] * 4
    assert sorted(names([group for groups in trainer.sent for group in groups])) == list("abcd")
    assert {run.id for run in store} == set(trained), "none that was complete is lost"
    assert len(store) == before + 2 * (4 - len(stored))


@pytest.mark.parametrize(
    ("pause_seconds", "step_seconds", "options", "remedy"),
    [
        (0.001, 0.3, {}, "the trainer was busy"),
        (0.1, 0.001, {"max_concurrency": 1}, "add an engine, or raise max_concurrency"),
        (0.1, 0.001, {"in_flight": 1}, "raise in_flight=1"),
        (0.1, 0.001, {}, "raise max_staleness=1, which allows 2 steps' groups at once"),
    ],
)
async def test_a_sentence_says_what_bounds_the_run(
    pause_seconds: float, step_seconds: float, options: dict[str, Any], remedy: str
) -> None:
    trainer = Trainer()
    trainer.during = lambda step: asyncio.sleep(step_seconds)
    records = await steps(trainer, lambda text, run: asyncio.sleep(pause_seconds), steps=5, **options)
    assert records[0].bound is None
    assert records[-1].bound is not None
    assert remedy in records[-1].bound
    assert records[-1].summary()["bound"] == records[-1].bound


async def test_a_continued_run_goes_on_with_what_its_first_steps_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, trainer, running, most = TrajectoryStore(tmp_path / "runs.sqlite"), Trainer(), 0, 0

    async def pause(text: str, run: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    def killed(step: int) -> Any:
        if step == 13:
            raise Killed
        return asyncio.sleep(0)

    trainer.during = killed
    held_out = HeldOut(["x", "y", "z"], temperature=None, reward=lambda _: 1.0)
    options: dict[str, Any] = {"run": "mine", "store": store, "tune": True, "max_concurrency": 6, "groups_per_step": 1,
                               "held_out": held_out, "evaluate_every": 6}  # fmt: skip
    records: list[StepRecord] = []
    with pytest.raises(Killed):
        await steps(trainer, pause, steps=14, records=records, **options)
    (record,) = [record for record in records if record.tuning is not None]
    assert most <= 6
    assert str(record.tuning) in str(record)
    assert record.summary()["tuning"]["first"] == 6
    with store.database.connect() as db, db.transaction():
        assert db.execute("SELECT max_concurrency FROM tunings").fetchall() == [(record.tuning.max_concurrency,)]
        db.execute("UPDATE tunings SET max_concurrency = 2")  # whatever this machine was like
    most, trainer.during = 0, lambda step: asyncio.sleep(0)
    trainer.jobs_by_key.popitem()  # the server has not accepted the last step
    with caplog.at_level(logging.INFO, "art_langgraph"):
        records = await steps(trainer, pause, steps=15, **options)
    assert [record.step for record in records] == list(range(1, 16))
    assert all(record.tuning is None for record in records)
    assert "'mine' was tuned before: max_concurrency=2" in caplog.text
    assert all(str(run.group).startswith("mine/agent/") for run in store if not run.evaluation), "not another policy's"
    assert most == 2, "runs of the evaluation included"


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.3])
async def test_kill_nine_of_the_client_loses_no_complete_group(
    connected: TrainerServer, tmp_path: Path, delay: float
) -> None:
    store, policy = TrajectoryStore(tmp_path / "runs.sqlite"), f"stream{int(delay * 100)}"
    async with TrainerClient() as client:
        await client.create_policy(policy)
        training = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.killed.stream", policy, str(store.path),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert training.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while (await training.stdout.readline()).strip() != b"step 2":
                assert training.returncode is None
        await asyncio.sleep(delay)
        training.kill()
        await training.wait()
        by_group = defaultdict[str, set[str]](set)
        for run in store:
            by_group[str(run.group)].add(run.id)
        records = [record async for record in killed_stream.steps(client, policy, store)]
    assert [record.step for record in records] == list(range(1, killed_stream.STEPS + 1))
    assert [record.result.version for record in records] == list(range(1, killed_stream.STEPS + 1))
    by_step = [store.runs_of_step(policy, f"{killed_stream.RUN}-step-{record.step}") for record in records]
    assert [len(runs) for runs in by_step] == [4] * killed_stream.STEPS
    trained = set[str]().union(*by_step)
    assert len(trained) == 4 * killed_stream.STEPS, "no run is in two steps"
    complete = {run for runs in by_group.values() if len(runs) == 2 for run in runs}
    assert len(complete) >= 8
    assert complete <= trained, "no complete group is lost"
