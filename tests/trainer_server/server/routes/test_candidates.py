"""A candidate on the running server: its share, who keeps what, and what cannot be tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.homes.jobs import answers, finish, groups, step
from tests.support.servers.trainer_server import TrainerServer, trainer_server_on


@pytest.mark.slow
def test_a_candidate_answers_its_share_of_new_rollouts(tmp_path: Path, base_model: Path) -> None:
    def served(rollout: str) -> str:
        return answers(http, "p", **{"X-ART-Rollout": rollout})

    with trainer_server_on(tmp_path, base_model) as server, server.http() as http:
        http.post("/api/policies", json={"name": "p"})
        assert step(http, "p") == 1
        begun = served("begun")
        put = "/api/policies/p/candidate"
        refused = http.put(put, json={"version": 1, "share": 0.5})
        assert (refused.status_code, "promote the one that answers" in refused.text) == (409, True)
        count = http.put("/api/policies/p/promotion", json={"version": 0, "after": 0}).json()["promotions"]
        assert http.put("/api/policies/p/promotion", json={"version": 1, "after": 0}).status_code == 409, "meanwhile"
        assert http.put(put, json={"version": 1, "share": 0.5, "after": 0}).status_code == 409
        assert http.put(put, json={"version": 0, "share": 0.5}).status_code == 409, "it is promoted"
        assert http.put(put, json={"version": 9, "share": 0.5}).status_code == 404
        assert http.put(put, json={"version": 1, "share": 1.5}).status_code == 422

        tried = http.put(put, json={"version": 1, "share": 0.5, "after": count}).json()
        assert http.put(put, json={"version": 1, "share": 0.5}).json() == tried, "the same request changes nothing"
        assert (tried["candidate"]["beside"], tried["rollouts"], tried["taken"]) == (0, 0, 0)
        given = {f"r{number}": served(f"r{number}") for number in range(20)}
        assert set(given.values()) == {"p@0", "p@1"}
        counts = http.get(put).json()
        assert (counts["rollouts"], counts["taken"]) == (20, list(given.values()).count("p@1"))
        assert counts["taken"] <= 10
        assert served("begun") == begun == "p@1", "it began before the trial"
        assert {answers(http, "p") for _ in range(9)} == {"p@0"}, "no rollout: the promoted version"
        assert answers(http, "p", **{"X-ART-Rollout": "pinned", "X-ART-Version": "1"}) == "p@1"
        assert http.get(put).json()["rollouts"] == 20, "a pinned rollout is not drawn"
        assert http.get("/api/policies/p").json()["candidate"]["version"] == 1
        assert step(http, "p") == 2
        gone = http.delete("/api/policies/p/versions/1")
        assert (gone.status_code, "served as a candidate" in gone.text) == (409, True)
    with trainer_server_on(tmp_path, base_model) as server, server.http() as http:
        assert {one: served(one) for one in given} == given, "also after a restart"
        assert served("begun") == "p@1", "the ledger knows it"
        assert http.delete(put, params={"version": 7}).status_code == 404
        assert http.delete(put).status_code == 204
        assert http.delete(put).status_code == 204
        assert {one: served(one) for one in given} == given, "also after the trial"
        assert {served(f"later-{number}") for number in range(8)} == {"p@0"}


def test_a_step_goes_on_from_the_version_that_it_names(server: TrainerServer) -> None:
    with server.http() as http:
        http.post("/api/policies", json={"name": "begun-from"})
        assert step(http, "begun-from") == 1
        body = {"groups": groups(http, 0.0, 1.0, model="begun-from@0"), "from_version": 0}
        steps, versions = (f"/api/policies/begun-from/{part}" for part in ("steps", "versions"))
        assert finish(http, http.post(steps, json=body))["result"]["version"] == 2
        assert [http.get(f"{versions}/{number}").json()["made_from"] for number in (1, 2)] == [0, 0]
        body = {"groups": groups(http, 1.0, 1.0, model="begun-from@0"), "from_version": 0}
        skipped = finish(http, http.post(steps, json=body))["result"]
        assert (skipped["version"], "skipped" in skipped["metrics"]) == (2, True)
        failed = finish(http, http.post(steps, json={**body, "from_version": 7}))
        assert "begun-from@7 cannot be trained" in failed["error"]
