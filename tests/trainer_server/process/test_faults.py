"""kill -9 at every point of a step, and full disks: after a restart the step is done, once, to the same bits.

`pytest -s` prints the table of faults.
"""

from __future__ import annotations

import random
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.homes.jobs import groups
from tests.support.patience import PATIENCE
from tests.support.servers.processes import Processes, processes, version_files
from trainer_server.policies.store import AdapterStore

pytestmark = pytest.mark.slow

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


STEPS = len(TRAINER) + len(SERVER) + len(ENGINE) + len(FULL) + len(LATER) + 10
"""Taken by the run that nothing interrupts; each test takes the next one of the other, from what the last one left."""
Files = dict[str, bytes]


@dataclass(slots=True)
class Run:
    """The run that is interrupted, and what comes of one that is not: the files of each version."""

    processes: Processes
    body: dict[str, Any]
    expected: dict[int, Files]
    took: list[tuple[str, ...]]

    @property
    def store(self) -> AdapterStore:
        return AdapterStore(self.processes.home.policies)

    def step(self) -> dict[str, Any]:
        """The next one, under a key of its own."""
        return {**self.body, "idempotency_key": secrets.token_hex(4)}

    def check(self) -> None:
        """The last two versions are those of the uninterrupted run, to the bit, and nothing is left half done."""
        for number in self.store.versions("p")[-2:]:
            assert version_files(self.processes.home, "p", number) == self.expected[number], f"p@{number} differs"
        assert list(self.processes.home.policies.glob("*/staging/*")) == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[Run]:
    where = tmp_path_factory.mktemp("faults")
    with processes(where / "prepared" / "home", base_model) as first:
        first.start()
        with first.http() as http:
            assert http.post("/api/policies", json={"name": "p"}).status_code == 201
            body = {"groups": groups(http, 1.0, 0.0, 0.3), "config": {"lr": 1e-3}}
            assert first.job({**body, "idempotency_key": "first"})[0]["result"]["version"] == 1
        first.stop()
        shutil.copytree(first.home.root, where / "interrupted" / "home")
        first.start()
        for number in range(2, STEPS):
            assert first.job({**body, "idempotency_key": str(number)})[0]["result"]["version"] == number
        expected = {number: version_files(first.home, "p", number) for number in range(STEPS)}
    with processes(where / "interrupted" / "home", base_model) as second:
        second.start()
        made = Run(second, body, expected, [])
        yield made
    print("\n| where | when | dies | the step | requests of rollouts: answered, refused, cut off; longest |")
    print("|---|---|---|---|---|")
    print("\n".join(f"| {' | '.join(row)} |" for row in made.took))


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
        """Looks at each version when it is first listed, and always at the newest two: all together are read for longer
        than a step takes."""
        whole: set[int] = set()
        with self._running.http(timeout=BOUND) as http:
            while not self._stop.wait(0.1):
                try:
                    found = http.get("/api/policies/p/versions").json()["versions"]
                except httpx.TransportError:
                    continue
                numbers = [one["version"] for one in found]
                for number in {*numbers} - (whole - {*numbers[-2:]}):
                    whole.add(number)
                    if problem := self._store.problem("p", number):
                        self.broken.append(f"p@{number} is listed: {problem}")

    def _roll_out(self) -> None:
        body = {"model": "p", "messages": [{"role": "user", "content": "say hello"}], "max_tokens": 20}
        with self._running.http(timeout=BOUND) as http:
            while not self._stop.wait(0.1):
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


def goes_on(run: Run, died: int) -> Watch:
    """Takes a step in which something dies, and holds what comes of it to the uninterrupted run."""
    latest = run.store.versions("p")[-1]
    body = run.step()
    with run.processes.http() as http:
        jobs = len(http.get("/api/jobs").json()["jobs"])
    with Watch(run.processes) as watch:
        job, found = run.processes.job(body)
    assert not run.processes.fault.exists()
    assert not run.processes.engine_fault.exists()
    assert found == died
    assert job["status"] == "succeeded", job
    assert job["result"]["version"] == latest + 1
    assert watch.broken == []
    assert watch.versions == sorted(watch.versions)  # a policy never goes back
    assert set(watch.versions) <= {latest, latest + 1}
    with run.processes.http() as http:
        versions = [one["version"] for one in http.get("/api/policies/p/versions").json()["versions"]]
        assert versions == list(range(latest + 2))
        assert len(http.get("/api/jobs").json()["jobs"]) == jobs + 1
        assert http.post("/api/policies/p/steps", json=body).json()["id"] == job["id"]
    run.check()
    return watch


@pytest.mark.parametrize("point", TRAINER)
def test_a_trainer_killed_anywhere_loses_nothing(run: Run, point: str) -> None:
    restarts = run.processes.trainer_restarts()
    run.processes.fault.write_text(point)
    watch = goes_on(run, died=0)  # the server lives on and starts another trainer
    run.took.append(("trainer", TRAINER[point], "the trainer", "done once, same bits", str(watch)))
    deadline = time.monotonic() + PATIENCE
    while run.processes.trainer_restarts() == restarts:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("point", SERVER)
def test_a_server_killed_anywhere_loses_nothing(run: Run, point: str) -> None:
    run.processes.fault.write_text(point)
    watch = goes_on(run, died=1)
    run.took.append(("server", SERVER[point], "the server, then its trainer", "done once, same bits", str(watch)))


@pytest.mark.parametrize("point", ENGINE)
def test_an_engine_killed_in_a_swap_loses_nothing(run: Run, point: str) -> None:
    run.processes.engine_fault.write_text(point)
    watch = goes_on(run, died=1)
    run.took.append(("engine", ENGINE[point], "the engine", "done once, same bits", str(watch)))


@pytest.mark.parametrize("point", ["accepted", "published"])
def test_a_policy_whose_making_is_killed_is_made_once(run: Run, point: str) -> None:
    run.processes.fault.write_text(point)
    spec, deadline = {"name": f"made-{point}"}, time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < deadline
        run.processes.revive()
        try:
            with run.processes.http() as http:
                answer = http.post("/api/policies", json=spec)
            break
        except httpx.TransportError:
            time.sleep(0.1)
    assert answer.is_success, answer.text
    assert not run.processes.fault.exists()
    assert run.store.versions(f"made-{point}") == [0]
    assert version_files(run.processes.home, f"made-{point}", 0) == run.expected[0]  # the same seed
    where = {**SERVER, **TRAINER}[point]
    run.took.append(("create", where, "server" if point in SERVER else "trainer", "made once, same bits", ""))


@pytest.mark.parametrize("point", FULL)
def test_a_step_that_finds_no_space_fails_and_can_be_sent_again(run: Run, point: str) -> None:
    latest = run.store.versions("p")[-1]
    run.processes.fault.write_text(f"{point}:ENOSPC")
    with Watch(run.processes) as watch:
        job, _ = run.processes.job(run.step())
    assert job["status"] == "failed"
    assert "No space left on device" in job["error"]
    assert "another idempotency key" in job["error"]
    assert watch.broken == []
    assert set(watch.versions) <= {latest}  # none where it was too quick to look
    assert run.store.versions("p")[-1] == latest
    goes_on(run, died=0)
    run.took.append(("trainer", FULL[point], "nobody", "fails; sent again: same bits", str(watch)))


@pytest.mark.parametrize("point", LATER)
def test_a_word_that_finds_no_space_is_said_later(run: Run, point: str) -> None:
    run.processes.fault.write_text(f"{point}:ENOSPC")
    watch = goes_on(run, died=0)
    run.took.append(("trainer, server", LATER[point], "nobody", "done once, same bits", str(watch)))


def test_nobody_else_can_read_what_is_kept(run: Run) -> None:
    """The ledger, the jobs, the logs: the texts of users are in all of them."""
    root = run.processes.home.root
    kept = [root, *root.rglob("*")]
    assert {"ledger.sqlite", "trainer.log", "job.json", "adapter_model.safetensors"} <= {path.name for path in kept}
    assert [str(path) for path in kept if path.stat().st_mode & 0o077] == []


def test_a_job_that_finds_no_space_is_refused(run: Run) -> None:
    run.processes.fault.write_text("accepting:ENOSPC")
    body = run.step()
    with run.processes.http() as http:
        refused = http.post("/api/policies/p/steps", json=body)
    assert refused.status_code == 507
    assert refused.json()["error"]["code"] == "disk"
    assert run.processes.job(body)[0]["status"] == "succeeded"  # under the same key: it was never taken
    run.check()
    run.took.append(("server", "no space for the job", "nobody", "refused (507); sent again: same bits", ""))


def test_kills_at_any_moment_lose_nothing(run: Run) -> None:
    """The points above are those that somebody thought of."""
    rng = random.Random(0)
    victims = []
    for _ in range(6):
        latest = run.store.versions("p")[-1]
        victims.append(rng.choice(("trainer", "server", "engine")))
        timer = threading.Timer(rng.uniform(0.0, 1.0), run.processes.kill, [victims[-1]])
        timer.start()
        job, _ = run.processes.job(run.step())
        timer.join()
        assert job["status"] == "succeeded", job
        assert job["result"]["version"] == latest + 1
        run.check()
    run.took.append(
        (", ".join(sorted(set(victims))), "at random moments of six steps", "one each time", "same bits", "")
    )


def test_a_job_that_kills_its_trainer_again_and_again_is_given_up(run: Run) -> None:
    """An out-of-memory kill would meet it each time: the jobs behind it have their turn after the third."""
    latest = run.store.versions("p")[-1]
    body = run.step()
    stop = threading.Event()
    aside = run.processes.fault.with_suffix(".aside")

    def kill() -> None:
        while not stop.wait(0.01):
            aside.write_text("gathered")
            aside.replace(run.processes.fault)  # at once: a process must not read it half written

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        job, _ = run.processes.job(body)
    finally:
        stop.set()
        killer.join()
        run.processes.fault.unlink(missing_ok=True)
    assert job["status"] == "failed"
    assert "died 3 times" in job["error"]
    assert "token_budget" in job["error"]
    assert run.processes.job(run.step())[0]["result"]["version"] == latest + 1
    run.check()
    run.took.append(("trainer", TRAINER["gathered"], "the trainer, each time", "given up after three", ""))
