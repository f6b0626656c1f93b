"""Rollouts in worker processes: they are the rollouts that run here, and no process outlives its program."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from art_langgraph import ProcessExecutor, Scenario, TrajectoryStore, gather, rollout
from art_langgraph.loop.executors import transfer
from tests.support.patience import PATIENCE, until
from tests.support.processes.agents import broken, graph, outputs, two_calls, waits
from tests.support.servers.trainer_server import TrainerServer, row
from trainer_server.wire import ConfigError

PROGRAMS = Path(__file__).parents[3] / "support" / "processes"


@pytest.fixture(scope="module")
def executor() -> ProcessExecutor:
    """Two workers, which start once for these tests."""
    return ProcessExecutor(workers=2)


def workers(program: int | None = None) -> set[int]:
    """The worker processes of a program, this one where none is named, that have not ended."""
    found = set()
    for child in psutil.Process(program).children():
        with suppress(psutil.NoSuchProcess):  # it ends meanwhile
            if "spawn_main" in " ".join(child.cmdline()):
                found.add(child.pid)
    return found


def files(place: Path, beginning: str) -> list[str]:
    return sorted(path.name for path in place.glob(f"{beginning}.*"))


def waiting(place: Path, **metadata: Any) -> Scenario:
    return Scenario(input="x", metadata={"place": str(place), **metadata})


async def test_a_rollout_in_a_worker_is_the_rollout_that_runs_here(
    connected: TrainerServer, executor: ProcessExecutor, tmp_path: Path
) -> None:
    scored = []

    def reward(run: Any) -> float:
        scored.append(run.id)
        return float(len(run.completions))

    store, scenario = TrajectoryStore(tmp_path / "runs.sqlite"), Scenario(input="x")
    options: dict[str, Any] = {"metadata": {"mine": 1}, "temperature": 0.5, "version": 0}
    local = await rollout(two_calls, scenario, reward, **options)
    (group,) = await gather(two_calls, [scenario], 6, reward, executor=executor, store=store, progress=False, **options)
    runs = group.trajectories
    used = {run.metadata.pop("process") for run in runs}
    assert len(used) == 2
    assert os.getpid() not in used
    assert local.metadata.pop("process") == os.getpid()
    own = {"id", "rollout_id", "run_id", "thread_id", "started", "seconds", "completions", "nodes", "output"}
    for run in runs:
        assert run.model_dump(exclude=own) == local.model_dump(exclude=own)
        assert [call.path for call in run.completions] == [call.path for call in local.completions]
        assert [node.path for node in run.nodes] == [node.path for node in local.nodes]
        assert [message.text for message in run.messages] == [message.text for message in local.messages]
        for call, text in zip(run.completions, ("first", "second"), strict=True):
            found = row(connected, call.id)
            assert (found["rollout"], found["version"], found["sampling"]["temperature"]) == (run.rollout_id, 0, 0.5)
            assert "".join(map(chr, found["token_ids"][: len(text)])) == text
    assert sorted(scored) == sorted([local.id, *(run.id for run in runs)]), "the reward function ran here"
    assert sorted(run.id for run in store.list()) == sorted(run.id for run in runs)


async def test_what_a_graph_raises_there_has_the_same_words(
    connected: TrainerServer, executor: ProcessExecutor
) -> None:
    fails = Scenario(input="x", metadata={"fails": True})
    there, here = await rollout(two_calls, fails, executor=executor), await rollout(two_calls, fails)
    assert there.error == here.error == "RuntimeError: the tool is broken"
    assert [call.path for call in there.completions] == [call.path for call in here.completions]
    with pytest.raises(ConfigError, match=r"the graph factory broken raised: KeyError: 'no such tool'"):
        await rollout(broken, "x", executor=executor)


async def test_a_compiled_graph_of_a_module_goes_by_its_name(
    connected: TrainerServer, executor: ProcessExecutor
) -> None:
    run = await rollout(graph, "x", executor=executor)
    assert int(run.final_text.removeprefix("process ")) in workers()


async def test_what_no_worker_can_import_is_refused_with_its_name_and_the_remedy(executor: ProcessExecutor) -> None:
    async def agent() -> None: ...

    compiled = graph.builder.compile()
    for unknown, name in (
        (agent, "the function agent cannot be sent to a worker process: AttributeError: Can't pickle local object"),
        (compiled, "the graph cannot be sent to a worker process: the compiled graph 'LangGraph' works in the process"),
    ):
        with pytest.raises(ConfigError) as raised:
            await rollout(unknown, "x", executor=executor)
        assert name in str(raised.value)
        assert "at the top of a module, such as `from my_agents import make_graph`" in str(raised.value)
    with pytest.raises(ConfigError, match=r"an argument of the rollout .* cannot be sent to a worker process"):
        await rollout(waits, "x", metadata={"function": lambda: 1}, executor=executor)
    with pytest.raises(ConfigError, match="workers=0 must be at least 1"):
        ProcessExecutor(workers=0)


async def test_an_output_that_cannot_be_sent_comes_as_plain_data(
    connected: TrainerServer, executor: ProcessExecutor
) -> None:
    run = await rollout(outputs, "lock", executor=executor)
    assert run.output["text"] == "kept"
    with pytest.raises(ConfigError, match="the output of a run in a worker process cannot be loaded here: TypeError"):
        await rollout(outputs, "stubborn", executor=executor)


async def test_a_cancelled_gather_cleans_up_and_its_workers_go_on(
    connected: TrainerServer, executor: ProcessExecutor, tmp_path: Path
) -> None:
    running = asyncio.create_task(
        gather(waits, [waiting(tmp_path)], 6, executor=executor, max_concurrency=4, progress=False)
    )
    await until(lambda: len(files(tmp_path, "began")) == 4)
    before = workers()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert len(files(tmp_path, "ended")) == 4, "each had ended when the gather had"
    (tmp_path / "until").touch()
    run = await rollout(waits, waiting(tmp_path), executor=executor)
    assert run.output in workers() == before
    assert len(files(tmp_path, "began")) == 5, "those that waited for their turn never began"


async def test_a_worker_that_is_killed_fails_its_rollouts_and_another_takes_its_place(
    connected: TrainerServer, executor: ProcessExecutor, tmp_path: Path
) -> None:
    store = TrajectoryStore(tmp_path / "runs.sqlite")
    running = asyncio.create_task(
        gather(waits, [waiting(tmp_path)], 8, executor=executor, store=store, max_concurrency=6, progress=False)
    )
    await until(lambda: len(files(tmp_path, "began")) == 6)
    victim = int(files(tmp_path, "began")[0].split(".")[1])
    os.kill(victim, signal.SIGKILL)
    await until(lambda: len(files(tmp_path, "began")) == 8)  # the two that had not begun
    (tmp_path / "until").touch()
    (group,) = await running
    lost = [run for run in group.trajectories if run.error]
    assert {run.error for run in lost} == {
        f"WorkerLost: SIGKILL ended the worker process {victim}, perhaps because the memory was used up"
    }
    assert len(lost) == len([name for name in files(tmp_path, "began") if f".{victim}." in name]) == 3
    assert len(files(tmp_path, "began")) == 8, "nothing ran twice"
    others = {run.output for run in group.trajectories if not run.error}
    assert len(others) == 2
    assert others == workers()
    assert len({run.rollout_id for run in group.trajectories}) == 8
    assert sorted(run.id for run in store.list()) == sorted(run.id for run in group.trajectories)


async def test_an_agent_that_ends_its_process_is_a_failed_run(
    connected: TrainerServer, executor: ProcessExecutor, tmp_path: Path
) -> None:
    other = asyncio.create_task(rollout(waits, waiting(tmp_path), executor=executor))
    await until(lambda: files(tmp_path, "began"))
    gone = await rollout(outputs, "exit", executor=executor)
    (tmp_path / "until").touch()
    assert (await other).error is None, "it was in the other worker"
    assert gone.error is not None
    assert gone.error.startswith("WorkerLost: the worker process ")
    assert gone.error.endswith(" ended with exit code 3")


@pytest.mark.slow
async def test_a_worker_with_a_rollout_that_does_not_end_is_killed_when_the_others_have_ended(
    connected: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_GRACE", 0.1)
    executor = ProcessExecutor(workers=1)
    deaf = asyncio.create_task(rollout(waits, waiting(tmp_path / "deaf", deaf=True), executor=executor))
    other = asyncio.create_task(rollout(waits, waiting(tmp_path), executor=executor))
    (tmp_path / "deaf").mkdir()
    await until(lambda: files(tmp_path, "began") and files(tmp_path / "deaf", "began"))
    deaf.cancel()
    await asyncio.wait([deaf])
    (tmp_path / "until").touch()
    stuck = (await other).output
    await until(lambda: stuck not in workers())
    assert files(tmp_path / "deaf", "ended") == []


@pytest.mark.slow
async def test_workers_end_with_their_executor(connected: TrainerServer, tmp_path: Path) -> None:
    executor = ProcessExecutor(workers=1)
    (tmp_path / "until").touch()
    own = (await rollout(waits, waiting(tmp_path), executor=executor)).output
    assert own in workers()
    del executor
    gc.collect()
    await until(lambda: own not in workers())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
async def test_no_process_outlives_its_program(
    number: signal.Signals, connected: TrainerServer, tmp_path: Path
) -> None:
    program = subprocess.Popen(
        [sys.executable, PROGRAMS / "program.py", tmp_path], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    await until(lambda: len(files(tmp_path, "began")) == 2 or program.poll() is not None)
    started = workers(program.pid)
    assert len(started) == 2
    if number == signal.SIGINT:
        os.killpg(program.pid, number)  # as the terminal does
    else:
        program.kill()
    _, errors = await asyncio.to_thread(program.communicate, timeout=PATIENCE)
    assert program.returncode != 0
    await until(lambda: not any(map(psutil.pid_exists, started)))
    assert len(files(tmp_path, "ended")) == 2, "each rollout cleaned up"
    if number == signal.SIGINT:
        assert errors.count("Traceback") == 2, "the program's: workers print nothing"
        assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
async def test_a_program_that_starts_again_in_each_worker_is_told_of_the_guard(connected: TrainerServer) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAMS / "unguarded.py", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(program.communicate(), PATIENCE)
    said = output.decode()
    assert "ConfigError: the worker process" in said
    assert "ended with exit code 1 before it could run rollouts" in said
    assert 'below `if __name__ == "__main__":`' in said
