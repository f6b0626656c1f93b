"""What somebody broke, deleted or replaced by hand: said clearly, kept on disk, and in nobody's way."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import LlamaForCausalLM

from tests.support.homes.jobs import ask, finish, groups, version_of
from tests.support.homes.versions import publish
from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TrainerServer, trainer_server_on
from trainer_server.jobs.job_files import TrainingOutcome
from trainer_server.jobs.queue import JobQueue
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import StepRequest, StepResult

pytestmark = pytest.mark.slow

ADAPTER = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Path:
    """A home with p@0, p@1, p@2, and q@0."""
    home = tmp_path_factory.mktemp("prepared") / "home"
    with trainer_server_on(home, base_model) as server, server.http() as http:
        for name in ("p", "q"):
            assert http.post("/api/policies", json={"name": name}).status_code == 201
        for _ in range(2):
            assert train(http)["status"] == "succeeded"
    return home


@pytest.fixture
def home(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "home"))


@pytest.fixture
def server(home: Path, base_model: Path) -> Iterator[TrainerServer]:
    with trainer_server_on(home, base_model) as running:
        yield running


def train(http: httpx.Client, policy: str = "p") -> dict[str, Any]:
    body = {"groups": groups(http, 1.0, 0.0, model=policy), "config": {"lr": 1e-3}}
    return finish(http, http.post(f"/api/policies/{policy}/steps", json=body))


def refused(http: httpx.Client, model: str) -> tuple[int, str]:
    body = {"model": model, "messages": [{"role": "user", "content": "say x"}]}
    answer = http.post("/v1/chat/completions", json=body)
    return answer.status_code, answer.json()["error"]["message"]


def numbers(http: httpx.Client, policy: str = "p") -> list[int]:
    return [one["version"] for one in http.get(f"/api/policies/{policy}/versions").json()["versions"]]


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", ["truncated", "missing", "gone"])
def test_a_newest_version_that_is_broken_at_a_start_is_quarantined(home: Path, base_model: Path, damage: str) -> None:
    newest = home / "policies/p/versions/2"
    if damage == "truncated":
        truncate(newest / ADAPTER)
    elif damage == "missing":
        (newest / ADAPTER).unlink()
    else:
        shutil.rmtree(newest)
    with trainer_server_on(home, base_model) as server, server.http() as http:
        assert version_of(http, ask(http, "say x")) == 1
        assert version_of(http, ask(http, "say x", "q")) == 0
        assert numbers(http) == [0, 1]
        (reason,) = http.get("/api/policies/p").json()["quarantined"].values()
        assert "goes on from p@1" in reason
        assert "delete quarantined.json" in reason
        assert refused(http, "p@2") == (404, reason)
        assert http.get("/api/policies/p/versions/2").json()["error"]["message"] == reason
        assert train(http)["result"]["version"] == 3  # a number is never given twice
        assert numbers(http) == [0, 1, 3]


def test_a_version_that_was_repaired_is_used_again(home: Path, base_model: Path) -> None:
    newest = home / "policies/p/versions/2"
    whole = (newest / ADAPTER).read_bytes()
    truncate(newest / ADAPTER)
    with trainer_server_on(home, base_model) as server, server.http() as http:
        assert numbers(http) == [0, 1]
    (newest / ADAPTER).write_bytes(whole)
    (newest / "quarantined.json").unlink()
    with trainer_server_on(home, base_model) as server, server.http() as http:
        assert version_of(http, ask(http, "say x")) == 2


def test_a_newest_version_that_is_deleted_while_it_is_served_fails_one_step(server: TrainerServer) -> None:
    with server.http() as http:
        refs = groups(http, 1.0, 0.0)
        shutil.rmtree(server.home.policies / "p/versions/2")
        job = finish(http, http.post("/api/policies/p/steps", json={"groups": refs}))
        assert job["status"] == "failed"
        assert "p@2 cannot be used: its directory is gone" in job["error"]
        assert "goes on from p@1" in job["error"]
        assert "send it again" in job["error"]
        assert version_of(http, ask(http, "say x")) == 1
        assert train(http)["result"]["version"] == 3
        assert train(http, "q")["result"]["version"] == 1


def test_a_newest_version_that_is_deleted_before_it_is_loaded_fails_one_request(server: TrainerServer) -> None:
    shutil.rmtree(server.home.policies / "p/versions/2")
    with server.http() as http:
        status, message = refused(http, "p")
        assert status == 404
        assert "goes on from p@1" in message
        assert version_of(http, ask(http, "say x")) == 1
        assert train(http)["result"]["version"] == 3


def test_an_older_version_that_is_broken_is_refused_and_others_are_not(server: TrainerServer) -> None:
    truncate(server.home.policies / "p/versions/0" / ADAPTER)
    with server.http() as http:
        status, message = refused(http, "p@0")
        assert status == 404
        assert "its files are damaged" in message
        assert version_of(http, ask(http, "say x", "p@1")) == 1
        job = http.post(
            "/api/policies/p/steps", json={"groups": groups(http, 1.0, 0.0), "config": {"beta": 0.1}}
        )  # version 0 is the reference
        assert "reference_version=0" in finish(http, job)["error"]
        assert train(http)["status"] == "succeeded"


def test_a_version_that_the_engine_refuses_is_quarantined(home: Path, base_model: Path) -> None:
    with trainer_server_on(home, base_model) as server, server.http() as http:
        server.engine["refused"].append("p@3")
        assert version_of(http, ask(http, "say x", rollout="r")) == 2
        job = train(http)
        assert job["status"] == "failed"
        assert "weights of another shape" in job["error"]  # the engine's own words
        assert "goes on from p@2" in job["error"]
        assert version_of(http, ask(http, "say x")) == 2
        assert numbers(http) == [0, 1, 2]
        assert (server.home.policies / "p/versions/3" / ADAPTER).exists()
        assert train(http, "q")["status"] == "succeeded"
    with trainer_server_on(home, base_model) as server, server.http() as http:
        assert version_of(http, ask(http, "say x")) == 2
        assert train(http)["result"]["version"] == 4
        assert version_of(http, ask(http, "say x")) == 4


def test_a_version_that_is_deleted_while_it_waits_for_the_engine_is_quarantined(server: TrainerServer) -> None:
    with server.http() as http:
        body = {"groups": groups(http, 1.0, 0.0)}
        server.engine["unloadable"] = 1_000_000
        answer = http.post("/api/policies/p/steps", json=body)
        made = server.home.policies / "p/versions/3"
        until(made.exists)
        shutil.rmtree(made)
        job = finish(http, answer)
        assert job["status"] == "failed"
        assert "p@3 cannot be used: its directory is gone" in job["error"]
        server.engine["unloadable"] = 0
        assert version_of(http, ask(http, "say x")) == 2
        assert train(http)["result"]["version"] == 4


def test_an_engine_that_is_merely_away_quarantines_nothing(server: TrainerServer) -> None:
    with server.http() as http:
        body = {"groups": groups(http, 1.0, 0.0)}
        server.engine["unloadable"] = 2  # answers 503 twice
        assert finish(http, http.post("/api/policies/p/steps", json=body))["result"]["version"] == 3


def test_a_lost_optimizer_is_said_and_training_goes_on(server: TrainerServer) -> None:
    truncate(server.home.policies / "p/versions/2/optimizer.safetensors")
    with server.http() as http:
        job = train(http)
        assert job["result"]["version"] == 3
        assert "began anew" in job["result"]["metrics"]["optimizer"]
        assert "optimizer" not in train(http)["result"]["metrics"]


def test_missing_rows_of_the_ledger_are_counted(server: TrainerServer) -> None:
    with server.http() as http:
        refs = groups(http, 1.0, 0.0, 0.5)
        refs[0]["trajectories"][1]["completions"] = ["chatcmpl-of-another-ledger"]
        some = finish(http, http.post("/api/policies/p/steps", json={"groups": refs}))
        assert some["result"]["version"] == 3
        assert some["result"]["metrics"]["completions_skipped"] == {"missing": 1}
        for trajectory in refs[0]["trajectories"]:
            trajectory["completions"] = ["chatcmpl-of-another-ledger"]
        none = finish(http, http.post("/api/policies/p/steps", json={"groups": refs}))
        assert none["result"]["version"] == 3
        assert "missing" in none["result"]["metrics"]["skipped"]


def test_a_job_that_is_broken_is_in_nobodys_way(home: Path, base_model: Path) -> None:
    files = sorted(home.glob("jobs/*/job.json"))
    truncate(files[-1])  # done long ago
    queued = home / "jobs" / files[-1].parent.name.replace("job-1", "job-2") / "job.json"
    queued.parent.mkdir()
    queued.write_text("{")
    with trainer_server_on(home, base_model) as server, server.http() as http:
        assert train(http)["result"]["version"] == 3
        found = [one["id"] for one in http.get("/api/jobs").json()["jobs"]]
        assert files[-1].parent.name in found
        assert queued.parent.name not in found
        assert http.get(f"/api/jobs/{queued.parent.name}").status_code == 404
    with trainer_server_on(home, base_model) as server, server.http() as http:
        assert train(http)["result"]["version"] == 4


def other_model(base: Path, where: Path, other: str) -> Path:
    """A base model of another name, or of the same name with other weights."""
    path = where / "other" / ("base" if other == "weights" else "elsewhere")
    shutil.copytree(base, path)
    if other == "weights":
        model = LlamaForCausalLM.from_pretrained(path)
        with torch.no_grad():
            model.model.layers[0].self_attn.q_proj.weight.add_(0.01)
        model.save_pretrained(path)
    return path


def open_step(home: Path, base: Path) -> tuple[JobQueue, str]:
    """A step of p that a server accepted before it was killed."""
    with trainer_server_on(home, base) as server, server.http() as http:
        refs = groups(http, 1.0, 0.0)
    board = JobQueue(home / "jobs")
    request = StepRequest.model_validate({"groups": refs, "config": {"lr": 1e-3}, "idempotency_key": "k"})
    return board, board.accept("step", "p", request=request).id


def ended(http: httpx.Client, job_id: str) -> dict[str, Any]:
    job = http.get(f"/api/jobs/{job_id}", params={"wait": 50}).json()
    assert job["status"] in ("succeeded", "failed"), job
    return dict(job)


@pytest.mark.parametrize("other", ["name", "weights", "rank"])
def test_an_open_job_of_a_policy_that_is_not_served_any_more_fails_and_changes_nothing(
    home: Path, base_model: Path, tmp_path: Path, other: str
) -> None:
    _, job_id = open_step(home, base_model)
    path = base_model if other == "rank" else other_model(base_model, tmp_path, other)
    with trainer_server_on(home, path, max_rank=1 if other == "rank" else 16) as server, server.http() as http:
        job = ended(http, job_id)
        assert job["status"] == "failed"
        assert ("--max-rank 8" if other == "rank" else "'base'") in job["error"]
        assert "changed nothing: send it again" in job["error"]
        assert refused(http, "p")[0] == 404
        assert http.post("/api/policies", json={"name": "r", "rank": 1}).status_code == 201
        assert {name.partition("@")[0] for name in server.engine["loaded"]} == {"r"}
    with trainer_server_on(home, base_model) as server, server.http() as http:
        assert numbers(http) == [0, 1, 2]
        assert http.get("/api/policies/p").json()["quarantined"] == {}
        assert train(http)["result"]["version"] == 3


@pytest.mark.parametrize("told", [False, True])
def test_what_such_a_job_has_made_is_kept_for_its_base_model(
    home: Path, base_model: Path, tmp_path: Path, told: bool
) -> None:
    """told: whether the trainer came to its report."""
    board, job_id = open_step(home, base_model)
    publish(AdapterStore(home / "policies"), "p", 3, job_id=job_id)
    shutil.copyfile(home / "policies/p/versions/2" / ADAPTER, home / "policies/p/versions/3" / ADAPTER)
    if told:
        board.report(job_id, TrainingOutcome(result=StepResult(version=3, metrics={})))
    with trainer_server_on(home, other_model(base_model, tmp_path, "name")) as server, server.http() as http:
        job = ended(http, job_id)
        assert (job["status"], job["result"]["version"]) == ("succeeded", 3), job
        assert refused(http, "p")[0] == 404
        assert server.engine["loaded"] == {}
    with trainer_server_on(home, base_model) as server, server.http() as http:
        assert version_of(http, ask(http, "say x")) == 3


@pytest.mark.parametrize("other", ["name", "weights"])
def test_policies_of_another_base_model_wait_for_it(
    home: Path, base_model: Path, tmp_path: Path, other: str
) -> None:  # fmt: skip
    path = other_model(base_model, tmp_path, other)
    with trainer_server_on(home, path) as server, server.http() as http:
        for answer in (
            http.post("/api/policies/p/steps", json={"groups": [{"scenario_id": "s", "trajectories": []}]}),
            http.post("/api/policies", json={"name": "p"}),
            http.post("/api/policies", json={"name": "new", "fork_of": {"policy": "p", "version": 1}}),
        ):
            assert answer.status_code == 409
            assert "base model" in answer.json()["error"]["message"] or "'base'" in answer.json()["error"]["message"]
        assert "create a policy of another name" in refused(http, "p")[1]
        assert http.post("/api/policies", json={"name": "r"}).status_code == 201
        assert [one["name"] for one in http.get("/api/policies").json()["policies"]] == ["p", "q", "r"]
    with trainer_server_on(home, base_model) as server, server.http() as http:
        assert train(http)["result"]["version"] == 3


def test_policies_of_a_larger_rank_than_the_engine_takes_wait_for_it(home: Path, base_model: Path) -> None:
    with trainer_server_on(home, base_model, max_rank=1) as server, server.http() as http:
        assert "--max-rank 8" in refused(http, "p")[1]
    with trainer_server_on(home, base_model) as server, server.http() as http:
        assert version_of(http, ask(http, "say x")) == 2


def test_a_policy_that_is_deleted_while_it_is_served_and_made_again_is_a_new_one(server: TrainerServer) -> None:
    with server.http() as http:
        assert version_of(http, ask(http, "say x")) == 2
        assert version_of(http, ask(http, "say x", "p@1")) == 1
        shutil.rmtree(server.home.policies / "p")
        assert http.post("/api/policies", json={"name": "p"}).status_code == 201
        assert version_of(http, ask(http, "say x")) == 0
        server.engine["loads"] = 0
        assert train(http)["result"]["version"] == 1
        assert version_of(http, ask(http, "say x")) == 1
        assert server.engine["loads"] == 1, "what answers is not the deleted p@1"


def test_no_number_is_given_twice_after_a_trainer_was_killed_at_its_last_note(home: Path, base_model: Path) -> None:
    """It has made its version, and not written down that this is the highest number."""
    _, job_id = open_step(home, base_model)
    store, highest = AdapterStore(home / "policies"), home / "policies/p/highest.json"
    before = highest.read_text()
    publish(store, "p", 3, job_id=job_id)
    highest.write_text(before)
    with trainer_server_on(home, base_model) as server, server.http() as http:
        assert ended(http, job_id)["result"]["version"] == 3
        refs = groups(http, 1.0, 0.0)
        shutil.rmtree(store.directory("p", 3))
        job = finish(http, http.post("/api/policies/p/steps", json={"groups": refs}))
        assert "p@3 cannot be used: its directory is gone" in job["error"]
        assert train(http)["result"]["version"] == 4


def test_the_number_of_a_version_that_is_quarantined_is_taken(tmp_path: Path) -> None:
    store = AdapterStore(tmp_path)
    for number in (0, 1):
        publish(store, "p", number)
    (tmp_path / "p" / "highest.json").unlink()
    store.quarantine("p", 1, "it is broken")
    assert store.next_number("p") == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "small"
    where.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", where], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=True)


def test_a_full_disk_stops_everything_and_loses_nothing(prepared: Path, base_model: Path, small_disk: Path) -> None:
    home = Path(shutil.copytree(prepared, small_disk / "home"))
    with trainer_server_on(home, base_model) as server, server.http() as http:
        refs = groups(http, 1.0, 0.0)
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        answer = http.post("/api/policies/p/steps", json={"groups": refs, "idempotency_key": "k"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "disk"), answer.text
        assert refused(http, "p")[0] == 507  # nothing unrecorded leaves
        assert http.post("/api/policies", json={"name": "new"}).status_code == 507
        os.truncate(filler, filler.stat().st_size - 64 * 1024)  # enough for a job, not for a version
        job = finish(http, http.post("/api/policies/p/steps", json={"groups": refs, "idempotency_key": "k"}))
        assert job["status"] == "failed"
        assert "space on the disk" in job["error"]
        assert numbers(http) == [0, 1, 2]
        filler.unlink()
        assert version_of(http, ask(http, "say x")) == 2
        job = finish(http, http.post("/api/policies/p/steps", json={"groups": refs, "idempotency_key": "l"}))
        assert job["result"]["version"] == 3
        assert http.post("/api/policies", json={"name": "new"}).status_code == 201
