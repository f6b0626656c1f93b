"""A server whose trainer is two processes: steps and warm starts through the API, and one of them killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.homes.job_service import STEP
from tests.support.homes.jobs import finish, groups
from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TrainerServer, trainer_server_on
from tests.support.sockets import exposed, listening
from trainer_server.common import Home
from trainer_server.common.guard import guard_command
from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.vllm.command import free_port
from trainer_server.jobs import trainer_process
from trainer_server.jobs.queue import JobQueue
from trainer_server.jobs.trainer_process import TrainerProcess, TrainerSettings, command
from trainer_server.policies.store import AdapterStore
from trainer_server.process.hardware import flavour
from trainer_server.wire import ConfigError

LAUNCHER = "trainer_server.training.launch"

pytestmark = pytest.mark.slow


def test_two_processes_train_and_outlive_the_death_of_one(tmp_path: Path, base_model: Path) -> None:
    with (
        trainer_server_on(tmp_path / "home", base_model, trainer_processes=2, trainer_shard=True) as server,
        server.http() as http,
    ):
        assert http.post("/api/policies", json={"name": "p"}).status_code == 201
        body = {"groups": groups(http, 1.0, 0.0), "config": {"lr": 1e-3}}
        first = finish(http, http.post("/api/policies/p/steps", json=body))
        assert first["result"]["version"] == 1, first
        assert first["result"]["metrics"]["ranks"] == 2
        trainer: Any = server.app.state.server.jobs
        children = psutil.Process(trainer.process.pid).children(recursive=True)
        ranks = [one for one in children if LAUNCHER not in one.cmdline()]
        assert len(ranks) == 2
        assert exposed(listening(psutil.Process(trainer.process.pid))) == []
        ranks[-1].kill()
        second = finish(http, http.post("/api/policies/p/steps", json={**body, "idempotency_key": "again"}))
        assert second["result"]["version"] == 2, second
        assert trainer.process.restarts == 1

        children = psutil.Process(trainer.process.pid).children(recursive=True)
        (launcher,) = (one for one in children if LAUNCHER in one.cmdline())
        launcher.kill()
        _, alive = psutil.wait_procs(children, timeout=PATIENCE)
        alive = [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]
        assert alive == [], "two trainers would make two versions of one job"
        third = finish(http, http.post("/api/policies/p/steps", json={**body, "idempotency_key": "third"}))
        assert third["result"]["version"] == 3, third


def settings(home: Path, **others: Any) -> TrainerSettings:
    return TrainerSettings(home=Home(home), base=ServedModel("base", str(home)), tokenizer="tok", **others)


def test_threads_of_a_trainer_that_has_what_others_leave_sleep_while_they_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in trainer_process.WAITING:
        monkeypatch.delenv(name, raising=False)
    given = settings(tmp_path)
    assert trainer_process.environment(given, low_priority=True)["OMP_WAIT_POLICY"] == "passive"
    assert "OMP_WAIT_POLICY" not in trainer_process.environment(given, low_priority=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    assert "OMP_WAIT_POLICY" not in trainer_process.environment(given, low_priority=True)


def test_a_trainer_keeps_freed_memory_unless_the_server_s_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in trainer_process.KEEPING:
        monkeypatch.delenv(name, raising=False)
    given = settings(tmp_path)
    assert trainer_process.KEEPING.items() <= trainer_process.environment(given, low_priority=False).items()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    variables = trainer_process.environment(given, low_priority=False)
    assert variables["MALLOC_TRIM_THRESHOLD_"] == "1000000"
    assert "MALLOC_MMAP_THRESHOLD_" not in variables


def accelerate_config(path: Path, kind: str, machine: int = 0, machines: int = 1, port: int = 0) -> Path:
    fsdp = "fsdp_config:\n  fsdp_version: 2\n" if kind == "FSDP" else ""
    path.write_text(
        f"distributed_type: {kind}\nnum_machines: {machines}\nnum_processes: 2\nmachine_rank: {machine}\n"
        f"main_process_ip: 127.0.0.1\nmain_process_port: {port or free_port()}\nrdzv_backend: static\nuse_cpu: false\n"
        f"same_network: true\nmixed_precision: 'no'\ncompute_environment: LOCAL_MACHINE\n{fsdp}"
    )
    return path


def step(server: TrainerServer) -> dict[str, Any]:
    with server.http() as http:
        assert http.post("/api/policies", json={"name": "p"}).status_code == 201
        body = {"groups": groups(http, 1.0, 0.0), "config": {"lr": 1e-3}}
        made = finish(http, http.post("/api/policies/p/steps", json=body))
        assert made["result"]["version"] == 1, made
        return dict(made["result"]["metrics"])


@pytest.mark.parametrize("kind", ["MULTI_GPU", "FSDP"])
def test_accelerate_starts_it_too(tmp_path: Path, base_model: Path, kind: str) -> None:
    config = accelerate_config(tmp_path / "accelerate.yaml", kind)
    with trainer_server_on(tmp_path / "home", base_model, accelerate_config=config) as server:
        assert step(server)["ranks"] == 2


def test_two_machines_make_one_trainer(tmp_path: Path, base_model: Path) -> None:
    """Both are this one: two launchers that meet at a port, as docs/scaling/trainer.md has it for several machines."""
    port = free_port()
    first, second = (accelerate_config(tmp_path / f"{at}.yaml", "MULTI_GPU", at, 2, port) for at in range(2))
    with trainer_server_on(tmp_path / "home", base_model, accelerate_config=first) as server:
        line = server.app.state.server.jobs.process.command
        assert str(first) in line
        log = tmp_path / "second.log"
        with log.open("wb") as out:
            other = subprocess.Popen(
                [str(second) if one == str(first) else one for one in guard_command(line)], stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        try:
            assert step(server)["ranks"] == 2, log.read_text()
        finally:
            other.terminate()
            other.wait(PATIENCE)


@pytest.mark.parametrize(
    ("text", "words"),
    [("distributed_type: MULTI_CPU", "MULTI_CPU, with which"), ("[1", "cannot be read"), ("", "None, with which")],
)
def test_an_accelerate_config_that_starts_one_process_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        command(settings(tmp_path, accelerate_config=path))


def test_the_launcher_is_ours_or_accelerate(tmp_path: Path) -> None:
    several = command(settings(tmp_path, processes=4, shard=True))
    assert several[2:5] == [LAUNCHER, "4", "trainer_server.training"]
    assert several[-1] == "--shard"
    config = accelerate_config(tmp_path / "fsdp.yaml", "FSDP")
    by_file = command(settings(tmp_path, accelerate_config=config))
    assert by_file[2:6] == ["accelerate.commands.launch", "--config_file", str(tmp_path / "fsdp.yaml"), "-m"]
    assert LAUNCHER not in command(settings(tmp_path))


def test_the_trainer_is_told_the_commit_of_a_hub_model(tmp_path: Path) -> None:
    base = ServedModel("lab/open", str(tmp_path), revision="b" * 40)
    words = command(TrainerSettings(home=Home(tmp_path), base=base, tokenizer="tok"))
    assert words[words.index("--revision") + 1] == "b" * 40
    assert "--revision" not in command(settings(tmp_path))


async def test_a_trainer_that_ends_before_it_is_ready_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = [
        sys.executable,
        "-c",
        "print('worker.py: error: --loss mine: no LOSS'); print('====='); raise SystemExit(2)",
    ]
    monkeypatch.setattr(trainer_process, "command", lambda _: line)
    home = Home(tmp_path)
    trainer = TrainerProcess(
        settings(tmp_path), queue=JobQueue(home.jobs), store=AdapterStore(home.policies), open_ids=[]
    )
    assert trainer.failure is None
    await trainer.start()
    try:
        async with asyncio.timeout(PATIENCE):
            while trainer.failure is None:
                await asyncio.sleep(0.02)
        words = "the trainer ended with status 2 before it was ready: worker.py: error: --loss mine: no LOSS (see "
        assert trainer.failure.startswith(words)
        (tmp_path / "trainer.json").write_text(json.dumps({"ready": time.time() + 60}))  # it is ready at last
        assert trainer.failure is None
    finally:
        await trainer.stop()


def sleeping_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, on_demand: bool = False, open_ids: Sequence[str] = ()
) -> TrainerProcess:
    """A trainer, not started yet, whose process does nothing."""
    monkeypatch.setattr(trainer_process, "command", lambda _: ["sleep", "600"])
    home = Home(tmp_path)
    how = replace(settings(tmp_path), on_demand=on_demand)
    return TrainerProcess(how, queue=JobQueue(home.jobs), store=AdapterStore(home.policies), open_ids=open_ids)


async def test_a_clock_that_is_set_back_while_the_model_loads_does_not_hide_that_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trainer.json").write_text(json.dumps({"ready": time.time() + 60, "losses": ["of an earlier server"]}))
    trainer = sleeping_trainer(tmp_path, monkeypatch)
    await trainer.start()
    try:
        assert (trainer.ready, trainer.losses()) == (False, [])
        about = {"pid": 1, "ready": time.time() - 40 * 86400, "losses": ["grpo"]}
        (tmp_path / "trainer.json").write_text(json.dumps(about))
        assert (trainer.ready, trainer.losses()) == (True, ["grpo"])
        await trainer._start()  # after a death
        assert (trainer.ready, trainer.losses()) == (False, ["grpo"])
    finally:
        await trainer.stop()


@pytest.mark.parametrize("open_ids", [[], ["job-1"]])
async def test_on_demand_it_is_started_with_the_first_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_ids: list[str]
) -> None:
    trainer = sleeping_trainer(tmp_path, monkeypatch, on_demand=True, open_ids=open_ids)
    await trainer.start()
    try:
        await asyncio.sleep(0.05)
        if not open_ids:  # else an earlier server accepted one
            assert (trainer.asleep, trainer.running, trainer.failure) == (True, False, None)
            trainer.wake()
        async with asyncio.timeout(PATIENCE):
            while not trainer.running:
                await asyncio.sleep(0.01)
        first = trainer.pid
        trainer.wake()
        assert not trainer.asleep
        assert first is not None
        psutil.Process(first).kill()
        async with asyncio.timeout(PATIENCE):
            while trainer.pid == first or not trainer.running:
                await asyncio.sleep(0.01)
        assert trainer.restarts == 1
    finally:
        await trainer.stop()
    assert not trainer.running


async def test_a_trainer_that_nothing_woke_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = sleeping_trainer(tmp_path, monkeypatch, on_demand=True)
    await trainer.start()
    await trainer.stop()
    assert trainer.pid is None


async def test_a_trainer_whose_log_cannot_be_read_or_written_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = sleeping_trainer(tmp_path, monkeypatch)
    trainer._watch._pause = 0.02
    await trainer.start()
    try:
        log = Home(tmp_path).logs / "trainer.log"
        log.unlink()
        log.mkdir()
        assert trainer.pid
        psutil.Process(trainer.pid).kill()
        async with asyncio.timeout(PATIENCE):
            while "supervision of the trainer" not in (trainer.failure or ""):
                await asyncio.sleep(0.02)
            log.rmdir()
            while not trainer.running:
                await asyncio.sleep(0.02)
    finally:
        await trainer.stop()


async def test_where_trainer_and_engine_share_cores_answers_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = sleeping_trainer(tmp_path, monkeypatch)
    await trainer.start()
    try:
        async with asyncio.timeout(PATIENCE):
            while not (computing := psutil.Process(trainer.pid).children()):
                await asyncio.sleep(0.02)
        behind = 5 if flavour() == "cpu" else 0
        assert computing[0].nice() == min(19, psutil.Process().nice() + behind)
    finally:
        await trainer.stop()


@pytest.mark.parametrize(("ready", "failed"), [(True, True), (False, False)])
def test_a_job_does_not_fail_by_deaths_before_the_trainer_was_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: bool, failed: bool
) -> None:
    """Another process has the GPU, so that the model cannot be loaded: smaller batches would not help."""
    home = Home(tmp_path)
    board = JobQueue(home.jobs)
    job = board.accept("step", "p", request=STEP)
    board.start(job.id)
    trainer = TrainerProcess(settings(tmp_path), queue=board, store=AdapterStore(home.policies), open_ids=[job.id])
    monkeypatch.setattr(TrainerProcess, "ready", ready)
    for _ in range(3):
        trainer._count_death(1)
    assert (board.training_outcome(job.id) is not None) is failed


async def test_a_trainer_that_cannot_be_started_again_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_process, "command", lambda _: [sys.executable, "-c", "import time; time.sleep(600)"])
    home = Home(tmp_path)
    board = JobQueue(home.jobs)
    trainer = TrainerProcess(settings(tmp_path), queue=board, store=AdapterStore(home.policies), open_ids=[])
    trainer._watch._pause = 0.02
    await trainer.start()
    failures: list[str | None] = []
    plain = trainer._child.start

    async def start() -> None:
        failures.append(trainer.failure)
        if len(failures) < 3:
            raise OSError(11, "no more processes")
        await plain()

    monkeypatch.setattr(trainer._child, "start", start)
    try:
        assert trainer.pid is not None
        first = trainer.pid
        psutil.Process(first).kill()
        async with asyncio.timeout(PATIENCE):
            while trainer.pid == first or not trainer.running:
                await asyncio.sleep(0.01)
        why = "supervision of the trainer: BlockingIOError: [Errno 11] no more processes"
        assert failures[1:] == [why, why]
        assert trainer.restarts == 1, "it died once"
        assert trainer.failure is None or why not in trainer.failure
    finally:
        await trainer.stop()
