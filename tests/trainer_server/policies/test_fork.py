"""A policy from a version of another: the same weights, the same optimizer, a history of its own."""

from __future__ import annotations

import json

from tests.support.homes.jobs import ask, finish, groups, version_of
from tests.support.servers.processes import version_files
from tests.support.servers.trainer_server import TrainerServer


def trained(server: TrainerServer, policy: str, steps: int) -> None:
    with server.http() as http:
        http.post("/api/policies", json={"name": policy, "rank": 16, "temperature": 0.5})
        for _ in range(steps):
            body = {"groups": groups(http, 1.0, 0.0, model=policy)}
            assert finish(http, http.post(f"/api/policies/{policy}/steps", json=body))["status"] == "succeeded"


def test_a_fork_goes_on_where_its_source_was(server: TrainerServer) -> None:
    trained(server, "f1", 2)
    body = {"name": "f2", "fork_of": {"policy": "f1", "version": 1}}
    with server.http() as http:
        made = http.post("/api/policies", json=body)
        assert made.status_code == 201
        assert http.post("/api/policies", json=body).status_code == 200
        assert (made.json()["spec"]["rank"], made.json()["spec"]["temperature"]) == (16, 0.5)
        assert version_files(server.home, "f2", 0) == version_files(server.home, "f1", 1)
        (first,) = http.get("/api/policies/f2/versions").json()["versions"]
        assert first["metrics"] == {"fork_of": "f1@1", "optimizer": "copied"}
        assert version_of(http, ask(http, "say x", "f2")) == 0
        step = http.post("/api/policies/f2/steps", json={"groups": groups(http, 1.0, 0.0, model="f2")})
        assert finish(http, step)["result"]["version"] == 1
        assert json.loads(version_files(server.home, "f2", 1)["trainer.json"]) == {"updates": 2}
        assert [one["version"] for one in http.get("/api/policies/f1/versions").json()["versions"]] == [0, 1, 2]


def test_a_fork_may_begin_with_a_fresh_optimizer(server: TrainerServer) -> None:
    trained(server, "f3", 1)
    fork = {"policy": "f3", "version": 1, "optimizer": False}
    with server.http() as http:
        assert http.post("/api/policies", json={"name": "f4", "fork_of": fork}).status_code == 201
        assert json.loads(version_files(server.home, "f4", 0)["trainer.json"]) == {"updates": 0}
        step = finish(http, http.post("/api/policies/f4/steps", json={"groups": groups(http, 1.0, 0.0, model="f4")}))
        assert "optimizer" not in step["result"]["metrics"]
        assert json.loads(version_files(server.home, "f4", 1)["trainer.json"]) == {"updates": 1}


def test_what_cannot_be_forked_is_refused(server: TrainerServer) -> None:
    trained(server, "f5", 0)
    with server.http() as http:

        def fork(policy: str, version: int, **spec: object) -> tuple[int, str]:
            body = {"name": "f6", "fork_of": {"policy": policy, "version": version}, **spec}
            answer = http.post("/api/policies", json=body)
            return answer.status_code, answer.json()["error"]["message"]

        assert fork("nobody", 0)[0] == 404
        assert fork("f5", 7)[0] == 404
        status, message = fork("f5", 0, rank=8)
        assert status == 400
        assert "rank" in message
        assert fork("../f5", 0)[0] == 422
        assert http.post("/api/policies", json={"name": "f6", "fork_of": {"policy": "f5", "version": 0}}).is_success
        assert http.post("/api/policies", json={"name": "f6"}).status_code == 409
