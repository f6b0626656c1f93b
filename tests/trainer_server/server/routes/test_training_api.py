"""Policies, steps and versions over HTTP, with the real trainer process on a tiny model."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.support.homes.jobs import ask, finish, groups, version_of
from tests.support.servers.trainer_server import TrainerServer, trainer_server_on


def test_a_policy_is_created_once(server: TrainerServer) -> None:
    with server.http() as http:
        first = http.post("/api/policies", json={"name": "once", "rank": 8})
        assert first.status_code == 201
        assert first.json()["latest"] == 0
        assert http.post("/api/policies", json={"name": "once", "rank": 8}).status_code == 200
        assert http.post("/api/policies", json={"name": "once", "rank": 16}).status_code == 409
        assert http.post("/api/policies", json={"name": "big", "rank": 64}).status_code == 400
        assert http.post("/api/policies", json={"name": "../x"}).status_code == 422
        assert http.post("/api/policies", json={"name": "base"}).status_code == 400
        assert http.post("/api/policies", json={"name": "hot", "temperature": 11}).status_code == 422
        names = [one["name"] for one in http.get("/api/policies").json()["policies"]]
        assert "once" in names


def test_a_step_makes_a_version_that_is_served(server: TrainerServer) -> None:
    with server.http() as http:
        http.post("/api/policies", json={"name": "p"})
        body = {"groups": groups(http, 1.0, 0.0, None), "config": {"lr": 1e-3}, "idempotency_key": "k1"}
        job = finish(http, http.post("/api/policies/p/steps", json=body))
        assert job["status"] == "succeeded"
        assert job["result"]["version"] == 1
        metrics = job["result"]["metrics"]
        assert metrics["trajectories_skipped"] == {"no_reward": 1}
        assert job["result"]["trajectories"] == ["t0", "t1"]
        assert metrics["trajectories_trained"] == 2
        assert metrics["reward_by_version"] == {"0": {"mean": 0.5, "trajectories": 2}}
        assert http.get("/api/policies/p/versions/0").json()["score"] == 0.5
        listed = http.get("/api/jobs", params={"limit": 1}).json()["jobs"]
        assert [(one["id"], one["result"]["trajectories"]) for one in listed] == [(job["id"], None)]
        assert set(job["seconds"]) == {"train", "swap"}
        assert version_of(http, ask(http, "say x")) == 1
        assert version_of(http, ask(http, "say x", "p@0")) == 0
        assert [one["version"] for one in http.get("/api/policies/p/versions").json()["versions"]] == [0, 1]

        again = http.post("/api/policies/p/steps", json=body)
        assert again.json()["id"] == job["id"]
        other = http.post("/api/policies/p/steps", json={**body, "config": {"lr": 2e-3}})
        assert other.status_code == 409
        known = http.get("/api/policies/p/steps", params={"idempotency_key": "k1"})
        assert known.json()["id"] == job["id"]
        assert http.get("/api/policies/p/steps", params={"idempotency_key": "k2"}).status_code == 404

        skipped = finish(http, http.post("/api/policies/p/steps", json={"groups": groups(http, 0.5, 0.5)}))
        assert skipped["result"]["version"] == 1
        assert "all the same" in skipped["result"]["metrics"]["skipped"]
        assert skipped["result"]["trajectories"] == []
        assert 0 < skipped["seconds"]["engines_idle"] < skipped["finished"] - job["finished"] + 0.01
        assert http.get("/api/policies/p/versions/1").json()["score"] == 0.5, "a reward that teaches nothing counts too"

        assert http.delete("/api/policies/p/versions/1").status_code == 409
        assert http.delete("/api/policies/p/versions/0").status_code == 204
        assert http.get("/api/policies/p/versions/0").status_code == 404


def test_rewards_that_no_step_can_train_are_refused_with_the_run(server: TrainerServer) -> None:
    with server.http() as http:
        http.post("/api/policies", json={"name": "refused"})
        (group,) = groups(http, 1e308, 1e308, model="refused")
        answer = http.post("/api/policies/refused/steps", json={"groups": [group]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "groups")
        assert "'t0': the reward is 1e+308" in answer.json()["error"]["message"]
        good, bad = group["trajectories"]
        refs = [{**good, "reward": 1.0}, {**good, "id": bad["id"], "reward": 0.0}]
        job = finish(http, http.post("/api/policies/refused/steps", json={"groups": [{**group, "trajectories": refs}]}))
        assert job["status"] == "failed"
        assert "'t0' and 't1' are made of the same completions" in job["error"]
        assert http.post("/api/rollouts/ro-huge/reward", json={"reward": 1e30}).status_code == 422


def test_an_evaluation_is_not_trained_though_a_client_asks_for_it(server: TrainerServer) -> None:
    """Also where the rollout was registered after its calls."""
    with server.http() as http:
        http.post("/api/policies", json={"name": "held-out"})
        ids = {rollout: ask(http, "say x", "held-out", rollout) for rollout in ("ro-held-out", "ro-a", "ro-b")}
        assert http.put("/api/rollouts/ro-held-out", json={"evaluation": True}).status_code == 200
        refs = [
            {"id": rollout, "reward": float(reward), "completions": [ids[rollout]]}
            for reward, rollout in enumerate(ids)
        ]
        body = {"groups": [{"scenario_id": "s", "trajectories": refs}]}
        job = finish(http, http.post("/api/policies/held-out/steps", json=body))
        assert job["result"]["trajectories"] == ["ro-a", "ro-b"]
        assert job["result"]["metrics"]["trajectories_skipped"] == {"evaluation": 1}


def test_a_key_that_is_sent_many_times_at_once_makes_one_job(server: TrainerServer) -> None:
    found: list[str] = []
    with server.http() as http:
        http.post("/api/policies", json={"name": "once"})
        body = {"groups": groups(http, 1.0, 0.0, model="once"), "idempotency_key": "k"}

        def send() -> None:
            with server.http() as own:
                found.append(own.post("/api/policies/once/steps", json=body).json()["id"])

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_rollout_keeps_its_version_while_others_move_on(server: TrainerServer) -> None:
    with server.http() as http:
        http.post("/api/policies", json={"name": "q"})
        assert version_of(http, ask(http, "say a", "q", rollout="r1")) == 0
        finish(http, http.post("/api/policies/q/steps", json={"groups": groups(http, 1.0, 0.0, model="q")}))
        assert version_of(http, ask(http, "say b", "q", rollout="r1")) == 0
        assert version_of(http, ask(http, "say b", "q", rollout="r2")) == 1
        assert version_of(http, ask(http, "say b", "q")) == 1
        assert http.delete("/api/policies/q/versions/0").status_code == 409
        assert http.delete("/api/rollouts/r1").status_code == 204
        assert http.post("/api/rollouts/release", json=["r2", "unknown"]).status_code == 204
        assert version_of(http, ask(http, "say c", "q", rollout="r1")) == 1


def test_a_version_that_a_rollout_names_stays_between_its_calls(server: TrainerServer) -> None:
    with server.http() as http:
        http.post("/api/policies", json={"name": "named"})
        finish(http, http.post("/api/policies/named/steps", json={"groups": groups(http, 1.0, 0.0, model="named")}))
        assert version_of(http, ask(http, "say a", "named@0", rollout="n1")) == 0
        assert http.delete("/api/policies/named/versions/0").status_code == 409
        assert version_of(http, ask(http, "say a", "named", rollout="n1")) == 1, "its name means what it meant"
        assert http.delete("/api/rollouts/n1").status_code == 204
        assert http.delete("/api/policies/named/versions/0").status_code == 204


def test_swapping_drops_no_request(server: TrainerServer) -> None:
    failures: list[str] = []
    stop = threading.Event()

    def load() -> None:
        with server.http() as http:
            while not stop.is_set():
                body = {"model": "s", "messages": [{"role": "user", "content": "say hello"}]}
                answer = http.post("/v1/chat/completions", json=body)
                if answer.status_code != 200:
                    failures.append(answer.text)

    with server.http() as http:
        http.post("/api/policies", json={"name": "s"})
        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for expected in (1, 2, 3):
                step = http.post("/api/policies/s/steps", json={"groups": groups(http, 1.0, 0.0, model="s")})
                assert finish(http, step)["result"]["version"] == expected
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert failures == []


def test_bad_steps_are_refused(server: TrainerServer) -> None:
    with server.http() as http:
        assert http.post("/api/policies/nobody/steps", json={"groups": []}).status_code in (404, 422)
        answer = http.post("/api/policies/agent/steps", json={"groups": [], "config": {"lr": -1}})
        assert answer.status_code == 422
        assert "message" in answer.json()["error"]
        assert http.get("/api/jobs/job-1").status_code == 404
        assert http.get("/api/jobs/..%2f..%2fetc").status_code == 404
        assert http.get("/api/completions/nothing").status_code == 404


def test_jobs_are_listed_and_cancelled(server: TrainerServer) -> None:
    trainer = int(json.loads((server.home.root / "trainer.json").read_text())["pid"])
    with server.http() as http:
        http.post("/api/policies", json={"name": "cancelled"})
        body = {"groups": groups(http, 1.0, 0.0, model="cancelled")}
        os.kill(trainer, signal.SIGSTOP)  # it takes nothing up meanwhile
        try:
            first, second = (http.post("/api/policies/cancelled/steps", json=body).json()["id"] for _ in range(2))
            assert [one["id"] for one in http.get("/api/jobs", params={"limit": 1}).json()["jobs"]] == [second]
            for job_id in (second, first):
                answer = http.post(f"/api/jobs/{job_id}/cancel")
                assert answer.status_code == 200, answer.text
                assert answer.json()["status"] == "cancelled"
        finally:
            os.kill(trainer, signal.SIGCONT)
        listed = http.get("/api/jobs", params={"status": "cancelled"}).json()["jobs"]
        assert [job["id"] for job in listed] == [second, first]
        assert http.get("/api/jobs", params={"status": "odd"}).status_code == 422
        assert http.post("/api/jobs/job-1/cancel").status_code == 404
        job = finish(http, http.post("/api/policies/cancelled/steps", json=body))
        assert job["result"]["version"] == 1
        refused = http.post(f"/api/jobs/{job['id']}/cancel")
        assert refused.status_code == 409
        assert "has succeeded already" in refused.json()["error"]["message"]


def test_a_step_that_cannot_be_written_down_is_refused(server: TrainerServer) -> None:
    half = '{"groups": [{"scenario_id": "\\ud83d", "trajectories": []}]}'
    with server.http() as http:
        answer = http.post("/api/policies/agent/steps", content=half, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, answer.text
        assert "surrogates not allowed" in answer.json()["error"]["message"]


def test_the_contract_is_published(server: TrainerServer) -> None:
    with server.http() as http:
        paths = http.get("/openapi.json").json()["paths"]
    assert {"/api/policies", "/api/policies/{name}/steps", "/api/jobs/{job_id}", "/v1/chat/completions"} <= set(paths)


@pytest.mark.slow
def test_a_restarted_server_goes_on(tmp_path: Path, base_model: Path) -> None:
    with trainer_server_on(tmp_path, base_model) as server, server.http() as http:
        http.post("/api/policies", json={"name": "p"})
        body = {"groups": groups(http, 1.0, 0.0), "idempotency_key": "k"}
        job = finish(http, http.post("/api/policies/p/steps", json=body))
    with trainer_server_on(tmp_path, base_model) as server, server.http() as http:
        assert version_of(http, ask(http, "say x")) == 1
        assert http.post("/api/policies/p/steps", json=body).json()["id"] == job["id"]
        assert (
            finish(http, http.post("/api/policies/p/steps", json={"groups": groups(http, 0.0, 1.0)}))["result"][
                "version"
            ]
            == 2
        )


@pytest.mark.slow
def test_a_killed_trainer_comes_back_and_finishes(tmp_path: Path, base_model: Path) -> None:
    with trainer_server_on(tmp_path, base_model) as server, server.http() as http:
        http.post("/api/policies", json={"name": "p"})
        body = {"groups": groups(http, 1.0, 0.0)}
        os.kill(json.loads((tmp_path / "trainer.json").read_text())["pid"], signal.SIGKILL)
        assert finish(http, http.post("/api/policies/p/steps", json=body))["result"]["version"] == 1

        long = {**body, "config": {"num_iterations": 1000, "max_logp_gap": None}}
        job_id = http.post("/api/policies/p/steps", json=long).json()["id"]
        while http.get(f"/api/jobs/{job_id}").json()["status"] != "running":
            time.sleep(0.01)
        cancelled = http.post(f"/api/jobs/{job_id}/cancel").json()
        assert cancelled["status"] == "cancelled", cancelled
        assert version_of(http, ask(http, "say x")) == 1, "the last good version answers"
        late = finish(http, http.post("/api/policies/p/steps", json={**long, "time_limit": 0.5}))
        assert late["status"] == "failed"
        assert "for more than 0.5 s" in late["error"]
        assert finish(http, http.post("/api/policies/p/steps", json=body))["result"]["version"] == 2
        assert [one["version"] for one in http.get("/api/policies/p/versions").json()["versions"]] == [0, 1, 2]


@pytest.mark.parametrize("field", ["reward"])
def test_a_nan_reward_is_not_an_error_and_not_trained(server: TrainerServer, field: str) -> None:
    with server.http() as http:
        refs = groups(http, 1.0, 0.0, model="agent")
        text = '{"groups": ' + str(refs).replace("'", '"').replace("1.0", "NaN") + "}"
        answer = http.post("/api/policies/agent/steps", content=text, headers={"Content-Type": "application/json"})
        job = finish(http, answer)
    assert job["result"]["metrics"]["trajectories_skipped"] == {"no_reward": 1}
