"""Old versions go, the newest, the best and those in use stay."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.homes.jobs import ask, finish, groups, version_of
from tests.support.homes.versions import publish, slots_over
from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import trainer_server_on
from tests.support.training.worker import completion
from trainer_server.engines.pool import Engines
from trainer_server.engines.slots import Key
from trainer_server.jobs.job_files import JobFile
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.policies.leases import LocalLeases
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.retention import Needs, Retention, VersionInUse
from trainer_server.policies.store import OPTIMIZER, AdapterStore
from trainer_server.wire import Fork, GroupRef, GRPOConfig, PolicySpec, StepRequest, TrajectoryRef


class House:
    """A policy with `count` versions, no engine, and the jobs that a test opens."""

    def __init__(self, where: Path, count: int, keep: int | None) -> None:
        self.store = AdapterStore(where / "policies")
        self.store.register(PolicySpec(name="p"), "base")
        for number in range(count):
            publish(self.store, "p", number)
        self.leases = LocalLeases(900.0)
        self.names = PolicyNames(self.store)
        self.slots = slots_over(self.store, self.names, Engines([]), self.leases)
        self.jobs: list[JobFile] = []
        self.ledger = SQLiteLedger(where / "ledger.sqlite")
        self.ledger.close()
        self.retention = Retention(keep=keep, store=self.store, slots=self.slots, names=self.names, needs=self.needs)

    def needs(self) -> Needs:
        files = list(self.jobs)

        def versions() -> set[Key]:
            ids = [completion for file in files for completion in file.completions]
            return {key for file in files for key in file.versions} | self.ledger.sampled_versions(ids)

        return Needs(tuple(file.id for file in files), versions)

    def left(self) -> list[int]:
        return self.store.versions("p")

    def states(self) -> list[int]:
        return [number for number in self.left() if (self.store.directory("p", number) / OPTIMIZER).exists()]


def step(*completions: str, **config: object) -> JobFile:
    groups = [GroupRef(scenario_id="s", trajectories=[TrajectoryRef(id="t", reward=1.0, completions=[*completions])])]
    request = StepRequest(groups=groups, config=GRPOConfig.model_validate(config))
    return JobFile(id="job-1", kind="step", policy="p", created=0.0, request=request)


async def test_without_a_limit_everything_stays(tmp_path: Path) -> None:
    house = House(tmp_path, 6, None)
    assert await house.retention.sweep("p") == []
    assert house.left() == house.states() == [0, 1, 2, 3, 4, 5]


async def test_the_newest_and_version_0_stay(tmp_path: Path) -> None:
    house = House(tmp_path, 8, 4)
    assert await house.retention.sweep("p") == [1, 2, 3]
    assert house.left() == [0, 4, 5, 6, 7]
    assert house.states() == [5, 6, 7]  # two thirds of the bytes, and only what training goes on from
    assert house.store.next_number("p") == 8


async def test_the_best_stays_with_its_optimizer(tmp_path: Path) -> None:
    house = House(tmp_path, 6, 1)
    house.store.credit("p", 1, 0.9, 8, "job-1")
    house.store.credit("p", 2, 0.4, 8, "job-2")
    await house.retention.sweep("p")
    assert house.left() == [0, 1, 5]
    assert house.states() == [1, 5]


async def test_what_clients_said_counts_more_than_rewards_of_rollouts(tmp_path: Path) -> None:
    house = House(tmp_path, 6, 1)
    house.store.credit("p", 1, 0.9, 8, "job-1")
    house.store.score("p", 2, 0.4)
    house.store.credit("p", 2, 1.0, 8, "job-2")
    assert house.retention.best("p") == 2


async def test_rewards_are_those_of_the_version_that_sampled(tmp_path: Path) -> None:
    """Version 3 was made from 2, and trained on what 1 had sampled."""
    house = House(tmp_path, 5, 1)
    by_version = {"1": {"mean": 0.75, "trajectories": 4}, "2": {"mean": 0.25, "trajectories": 4}}
    publish(house.store, "p", 5, made_from=4, metrics={"reward_mean": 0.5, "reward_by_version": by_version})
    house.retention.credit("p", "job-5", {"reward_mean": 0.5, "reward_by_version": by_version})
    found = [record for number in (1, 2, 4) if (record := house.store.version("p", number))]
    assert [(record.score, record.scored_by) for record in found] == [
        (0.75, "rollouts"),
        (0.25, "rollouts"),
        (None, None),
    ]
    await house.retention.sweep("p")
    assert house.left() == [0, 1, 5]


async def test_rewards_of_several_steps_are_averaged_and_none_counts_twice(tmp_path: Path) -> None:
    house = House(tmp_path, 2, None)
    for job, mean, trajectories in (("job-1", 1.0, 3), ("job-2", 0.0, 1), ("job-2", 0.0, 1)):
        rewards = {"mean": mean, "trajectories": trajectories}
        house.retention.credit("p", job, {"reward_by_version": {"1": rewards, "9": rewards}})
    found = house.store.version("p", 1)
    assert found is not None
    assert found.score == 0.75
    assert house.left() == [0, 1], "a version that is gone is not made again"
    assert not house.store.directory("p", 9).exists()


async def test_a_version_whose_record_is_damaged_holds_nothing_up(tmp_path: Path) -> None:
    house = House(tmp_path, 6, 2)
    house.store.credit("p", 2, 0.9, 8, "job-2")
    (house.store.directory("p", 1) / "version.json").write_text("{")
    assert await house.retention.sweep("p") == [1, 3]
    assert house.left() == [0, 2, 4, 5]


async def test_a_leased_version_stays_until_it_is_released(tmp_path: Path) -> None:
    house = House(tmp_path, 4, 1)
    await house.leases.pin("r", "p", 1)
    await house.retention.sweep("p")
    assert house.left() == [0, 1, 3]
    await house.leases.release({"r"})
    await house.retention.sweep("p")
    assert house.left() == [0, 3]


async def test_a_version_that_is_being_exported_stays(tmp_path: Path) -> None:
    house = House(tmp_path, 4, 1)
    with house.retention.hold(("p", 2)):
        await house.retention.sweep("p")
    assert house.left() == [0, 2, 3]


async def test_versions_that_open_jobs_need_stay(tmp_path: Path) -> None:
    house = House(tmp_path, 6, 1)
    ledger = SQLiteLedger(house.ledger.path)
    await ledger.add(completion("c2", [1], version=2))
    ledger.close()
    fork = PolicySpec(name="q", fork_of=Fork(policy="p", version=3))
    house.jobs = [
        step("c2", beta=0.1, reference_version=1),
        JobFile(id="job-2", kind="create", policy="q", created=0.0, spec=fork),
    ]
    await house.retention.sweep("p")
    assert house.left() == [0, 1, 2, 3, 5]
    assert 3 in house.states()  # the fork takes the optimizer along
    house.jobs = []
    await house.retention.sweep("p")
    assert house.left() == [0, 5]


async def test_many_jobs_of_one_policy_ask_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path, 1, 1)
    swept: list[str] = []
    both = asyncio.Event()

    async def sweep(policy: str) -> list[int]:
        swept.append(policy)
        if len(swept) == 1:
            for asked in ("p", "q", "p", "q"):
                house.retention.later(asked)
        if len(swept) == 3:
            both.set()
        return []

    monkeypatch.setattr(house.retention, "sweep", sweep)
    house.retention.start()
    house.retention.later("p")
    await asyncio.wait_for(both.wait(), PATIENCE)
    await asyncio.sleep(0)
    await house.retention.stop()
    assert swept == ["p", "p", "q"]


async def test_a_deletion_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house, asked, done = House(tmp_path, 1, 1), [0], asyncio.Event()

    async def sweep(policy: str) -> list[int]:
        asked[0] += 1
        if asked[0] == 1:
            raise OSError("the disk is away")
        done.set()
        return []

    monkeypatch.setattr(house.retention, "sweep", sweep)
    house.retention.start()
    house.retention.later("p")
    await asyncio.wait_for(done.wait(), PATIENCE)
    await asyncio.sleep(0)
    assert house.retention.failure is None
    await house.retention.stop()


async def test_two_clients_that_delete_one_version_are_both_answered(tmp_path: Path) -> None:
    house = House(tmp_path, 4, None)
    results = await asyncio.gather(*(house.retention.delete("p", 1) for _ in range(2)), return_exceptions=True)
    assert sorted(map(str, results)) == ["None", "p@1 was deleted meanwhile"]
    assert house.left() == [0, 2, 3]


async def test_a_version_is_deleted_where_no_other_can_be_used(tmp_path: Path) -> None:
    house = House(tmp_path, 2, None)
    for number in (0, 1):
        house.store.quarantine("p", number, "it is broken")
    await house.retention.delete("p", 1)
    house.store.delete("p", 0)
    assert not any((house.store.root / "p" / "versions").iterdir())


async def test_what_the_name_still_means_stays(tmp_path: Path) -> None:
    house = House(tmp_path, 6, 1)
    house.names.newest["p"] = 4  # the engine is not there yet, so 5 is not served
    await house.retention.sweep("p")
    assert house.left() == [0, 4, 5]
    with pytest.raises(VersionInUse, match="newest"):
        await house.retention.delete("p", 4)


async def test_a_job_that_comes_while_a_version_is_unloaded_is_seen(tmp_path: Path) -> None:
    house = House(tmp_path, 4, None)

    async def submit() -> None:
        house.jobs = [step(beta=0.1, reference_version=1)]

    deleted, _ = await asyncio.gather(house.retention.delete("p", 1), submit(), return_exceptions=True)
    assert isinstance(deleted, VersionInUse)
    assert house.left() == [0, 1, 2, 3]


@pytest.mark.slow
async def test_completions_that_cannot_be_deleted_are_said_and_do_no_harm(
    tmp_path: Path, base_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    # The newest row says that the clock is right: ages count.
    await ledger.add(completion("old", [1], created=0.0), completion("new", [1], created=time.time()))
    ledger.close()
    with closing(sqlite3.connect(ledger.path)) as db:
        db.execute("CREATE TRIGGER full BEFORE DELETE ON completions BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    with trainer_server_on(tmp_path, base_model):
        assert "disk is full" in caplog.text


@pytest.mark.slow
def test_a_server_keeps_what_it_was_told_to(tmp_path: Path, base_model: Path) -> None:
    with trainer_server_on(tmp_path, base_model, keep_versions=2) as server, server.http() as http:
        http.post("/api/policies", json={"name": "p"})

        def train(*rewards: float) -> None:
            job = finish(http, http.post("/api/policies/p/steps", json={"groups": groups(http, *rewards)}))
            assert job["status"] == "succeeded"

        def come_to(scores: dict[int, float | None]) -> bool:
            """Versions and their scores, soon after the job is done."""
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                found = http.get("/api/policies/p/versions").json()["versions"]
                if {one["version"]: one["score"] for one in found} == scores:
                    return True
                time.sleep(0.02)
            return False

        train(1.0, 0.0)
        train(1.0, 0.8)
        assert version_of(http, ask(http, "say x", rollout="r")) == 2
        for _ in range(3):
            train(1.0, 0.0)
        assert come_to({0: 0.5, 1: 0.9, 2: 0.5, 4: 0.5, 5: None})
        assert http.delete("/api/policies/p/versions/2").status_code == 409
        assert http.put("/api/policies/p/versions/4/score", json={"score": 0.1}).status_code == 204
        assert http.put("/api/policies/p/versions/4/score", json={"score": "NaN"}).status_code == 422
        assert http.put("/api/policies/p/versions/3/score", json={"score": 0.1}).status_code == 404
        http.delete("/api/rollouts/r")
        train(1.0, 0.0)
        train(1.0, 0.0)
        assert come_to({0: 0.5, 4: 0.1, 6: 0.5, 7: None})


@pytest.mark.slow
def test_a_version_in_a_request_stays(tmp_path: Path, base_model: Path) -> None:
    with trainer_server_on(tmp_path, base_model, keep_versions=1) as server, server.http() as http:
        http.post("/api/policies", json={"name": "p"})

        def train() -> None:
            finish(http, http.post("/api/policies/p/steps", json={"groups": groups(http, 1.0, 0.0)}))

        train()
        http.put("/api/policies/p/versions/0/score", json={"score": 1.0})
        slow = {"model": "p@1", "messages": [{"role": "user", "content": "slow"}], "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=slow) as answer:
            lines = answer.iter_lines()  # held: a forgotten iterator would close the stream
            assert next(lines).startswith("data: ")
            train()
            assert http.delete("/api/policies/p/versions/1").status_code == 409
        train()
        deadline = time.monotonic() + PATIENCE
        while http.get("/api/policies/p/versions/1").status_code != 404:
            assert time.monotonic() < deadline
            time.sleep(0.02)


async def test_the_promoted_version_stays_and_cannot_be_deleted(tmp_path: Path) -> None:
    house = House(tmp_path, 6, 1)
    house.store.promote("p", 2)
    house.names.promote("p", 2)
    assert await house.retention.sweep("p") == [1, 3, 4]
    assert house.states() == [2, 5]
    with pytest.raises(VersionInUse, match="p@2 is promoted"):
        await house.retention.delete("p", 2)
    with pytest.raises(FileNotFoundError, match="p@3 was deleted"):
        house.store.promote("p", 3)


async def test_of_equally_scored_versions_the_earliest_is_the_best(tmp_path: Path) -> None:
    house = House(tmp_path, 4, None)
    for number, score in ((1, 0.5), (2, 0.9), (3, 0.9)):
        house.store.score("p", number, score)
    assert house.retention.best("p") == 2
