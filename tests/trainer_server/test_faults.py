"""kill -9 at every point of a step, and full disks: after a restart the step is done, once, to the same bits.

`pytest -s` prints the table of faults.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.trainer_server.processes import Processes, processes, version_files
from tests.trainer_server.test_training_api import groups
from trainer_server.adapters import AdapterStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BOUND = 30.0
"""Seconds within which a rollout's request has an answer or an error, whatever dies."""
TRAINER = {
    "started": "the trainer took the job up",
    "gathered": "its tokens are looked up, its weights loaded",
    "gradients": "gradients are computed",
    "updated": "the weights have changed in memory",
    "weights": "the adapter is written aside",
    "state": "the optimizer's state is written aside",
    "staged": "version.json is written aside",
    "published": "the version has its name; no report yet",
    "reporting": "the report is about to be written",
    "trained": "the trainer has reported",
}
SERVER = {
    "accepting": "the request is read, nothing written",
    "accepted": "job.json is written, the client has no answer",
    "swapping": "the server has seen the report",
    "loading": "the engine is about to be asked to load",
    "loaded": "the engine has it, the server has not noted it",
    "swapped": "the policy's name means the new version",
    "finishing": "done.json is about to be written",
    "done": "done.json is written, nobody told",
}
ENGINE = {
    "loading": "the engine was asked to load",
    "loaded": "the engine has loaded, and not answered",
}
FULL = {
    "started": "no space for what the trainer computes next",
    "weights": "no space for the optimizer's state",
    "staged": "no space when the version is published",
}
LATER = {
    "reporting": "no space for the trainer's report",
    "finishing": "no space for the server's last word",
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A home with p@1 and completions of it, and two steps to come."""
    home = tmp_path_factory.mktemp("prepared") / "home"
    with processes(home, base_model) as running:
        running.start()
        with running.http() as http:
            assert http.post("/api/policies", json={"name": "p"}).status_code == 201
            step = {"groups": groups(http, 1.0, 0.0, 0.3), "config": {"lr": 1e-2}, "idempotency_key": "first"}
            assert running.job(step)[0]["result"]["version"] == 1
            refs = groups(http, 0.0, 1.0, 0.2)
    return home, [{"groups": refs, "config": {"lr": 1e-2}, "idempotency_key": key} for key in ("second", "third")]


@pytest.fixture(scope="module")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory, base_model: Path, prepared: tuple[Path, list[dict[str, Any]]]
) -> list[dict[str, bytes]]:
    """The files of p@2 and p@3 when nothing dies."""
    home = tmp_path_factory.mktemp("whole") / "home"
    shutil.copytree(prepared[0], home)
    with processes(home, base_model) as running:
        running.start()
        for body in prepared[1]:
            assert running.job(body)[0]["status"] == "succeeded"
        return [version_files(running.home, "p", number) for number in (2, 3)]


@pytest.fixture
def running(
    tmp_path: Path, base_model: Path, prepared: tuple[Path, list[dict[str, Any]]]
) -> Iterator[Processes]:  # fmt: skip
    shutil.copytree(prepared[0], tmp_path / "home")
    with processes(tmp_path / "home", base_model) as made:
        yield made


@pytest.fixture(scope="module")
def table() -> Iterator[list[tuple[str, ...]]]:
    rows: list[tuple[str, ...]] = []
    yield rows
    print("\n| killed | when | died | the step | requests of rollouts: answered, refused, cut off; longest |")
    print("|---|---|---|---|---|")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))


class Watch:
    """Looks at everything that is listed and served, all the time, as clients do."""

    def __init__(self, running: Processes) -> None:
        self._running, self._store = running, AdapterStore(running.home.policies)
        self.broken: list[str] = []
        self.versions: list[int] = []
        self.statuses: list[int] = []
        self.cut_off = 0
        self.longest = 0.0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._list), threading.Thread(target=self._roll_out)]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _list(self) -> None:
        with self._running.http(timeout=BOUND) as http:
            while not self._stop.wait(0.02):
                try:
                    found = http.get("/api/policies/p/versions").json()["versions"]
                except httpx.TransportError:
                    continue
                for number in (one["version"] for one in found):
                    if problem := self._store.problem("p", number):
                        self.broken.append(f"p@{number} is listed: {problem}")

    def _roll_out(self) -> None:
        body = {"model": "p", "messages": [{"role": "user", "content": "say hello"}], "max_tokens": 20}
        with self._running.http(timeout=BOUND) as http:
            while not self._stop.wait(0.05):
                started = time.monotonic()
                try:
                    answer = http.post("/v1/chat/completions", json=body)
                    self.statuses.append(answer.status_code)
                    if answer.status_code == 200:
                        self.versions.append(int(answer.json()["model"].partition("@")[2]))
                except httpx.ReadTimeout:
                    self.broken.append(f"a request hung for {BOUND} s")
                except httpx.TransportError:
                    self.cut_off += 1
                self.longest = max(self.longest, time.monotonic() - started)

    def __str__(self) -> str:
        answered = self.statuses.count(200)
        return f"{answered}, {len(self.statuses) - answered}, {self.cut_off}; {self.longest:.1f} s"


def goes_on(
    running: Processes, steps: list[dict[str, Any]], uninterrupted: list[dict[str, bytes]]
) -> tuple[dict[str, Any], int, Watch]:
    """Takes both steps, in the first of which something dies, and holds what comes of it to the uninterrupted run."""
    with Watch(running) as watch:
        job, died = running.job(steps[0])
    assert running.mark.exists(), "the fault did not happen"
    assert job["status"] == "succeeded", job
    assert job["result"]["version"] == 2
    assert watch.broken == []
    assert watch.versions == sorted(watch.versions)  # a policy never goes back
    assert set(watch.versions) <= {1, 2}
    with running.http() as http:
        assert [one["version"] for one in http.get("/api/policies/p/versions").json()["versions"]] == [0, 1, 2]
        assert [one["kind"] for one in http.get("/api/jobs").json()["jobs"]] == ["step", "step", "create"]
        assert http.post("/api/policies/p/steps", json=steps[0]).json()["id"] == job["id"]
    later, _ = running.job(steps[1])
    assert later["result"]["version"] == 3
    assert [version_files(running.home, "p", number) for number in (2, 3)] == uninterrupted
    assert list(running.home.policies.glob("*/staging/*")) == []
    return job, died, watch


@pytest.mark.parametrize("point", sorted(TRAINER))
def test_a_trainer_killed_anywhere_loses_nothing(
    running: Processes, prepared: Any, uninterrupted: Any, table: list[tuple[str, ...]], point: str
) -> None:
    running.start(server_fault=point)
    _, died, watch = goes_on(running, prepared[1], uninterrupted)
    assert died == 0  # the server lives on and starts another trainer
    assert running.trainer_restarts() >= 2
    table.append(("trainer", TRAINER[point], "the trainer", "done once, same bits", str(watch)))


@pytest.mark.parametrize("point", sorted(SERVER))
def test_a_server_killed_anywhere_loses_nothing(
    running: Processes, prepared: Any, uninterrupted: Any, table: list[tuple[str, ...]], point: str
) -> None:
    running.start(server_fault=point)
    _, died, watch = goes_on(running, prepared[1], uninterrupted)
    assert died == 1
    table.append(("server", SERVER[point], "server, then its trainer", "done once, same bits", str(watch)))


@pytest.mark.parametrize("point", sorted(ENGINE))
def test_an_engine_killed_in_a_swap_loses_nothing(
    running: Processes, prepared: Any, uninterrupted: Any, table: list[tuple[str, ...]], point: str
) -> None:
    running.start(engine_fault=point)
    with running.http() as http:
        assert http.post("/api/policies/p/steps", json=prepared[1][0]).status_code == 202
    _, died, watch = goes_on(running, prepared[1], uninterrupted)
    assert died == 1
    table.append(("engine", ENGINE[point], "the engine", "done once, same bits", str(watch)))
