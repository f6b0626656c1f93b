"""A base URL for each rollout: every route under /v1, behind the token, with ids that are checked."""

from __future__ import annotations

from urllib.parse import quote

import openai
import pytest

from art_langgraph import TrainerClient
from tests.support.servers.trainer_server import TOKEN, TrainerServer

BODY = {"model": "agent", "messages": [{"role": "user", "content": "say hello"}], "max_tokens": 20}


def test_requests_under_a_rollouts_path_belong_to_it(server: TrainerServer) -> None:
    with server.http() as http:
        answer = http.post("/rollouts/by-path.1/v1/chat/completions", json=BODY, headers={"X-ART-Rollout": "other"})
        assert answer.status_code == 200, answer.text
        row = http.get(f"/api/completions/{answer.json()['id']}").json()
        assert (row["rollout"], row["model"]) == ("by-path.1", "agent")
        assert http.get("/rollouts/by-path.1/v1/models").json() == http.get("/v1/models").json()
        assert http.get("/rollouts/by-path.1").status_code == 404
        assert http.get("/rollouts/by-path.1/api/policies").status_code == 404
        assert http.get("/rollouts/by-path.1/v10").status_code == 404


def test_streams_and_openais_client_work_under_it(server: TrainerServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/rollouts/streamed/v1", api_key=TOKEN) as client:
        stream = client.chat.completions.create(
            model="agent", messages=[{"role": "user", "content": "say a b c"}], stream=True, max_tokens=20
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == "a b c"
    with server.http() as http:
        assert http.get("/api/rollouts/streamed").json()["calls"] == 1


def test_the_token_is_needed_under_it_too(server: TrainerServer) -> None:
    with server.http() as http:
        for path in ("/rollouts/x/v1/models", "/rollouts/x/v1/chat/completions", "/rollouts/x/health"):
            assert http.get(path, headers={"Authorization": ""}).status_code == 401
        keyed = http.get("/rollouts/x/v1/models", headers={"Authorization": "", "x-api-key": TOKEN})
        assert keyed.status_code == 200
        wrong = http.get("/v1/models", headers={"Authorization": "", "x-api-key": "wrong"})
        assert (wrong.status_code, "is wrong" in wrong.text) == (401, True)
        odd = http.get("/rollouts/x/v1/models", headers={"Host": "evil.example"})
        assert odd.json()["error"]["code"] == "unknown_host"


@pytest.mark.parametrize("rollout", ["a" * 201, "%2e%2e", "a b", "a%0d%0ab", "é", "-a", "a$"])
def test_ids_are_checked(server: TrainerServer, rollout: str) -> None:
    with server.http() as http:
        answer = http.post(f"/rollouts/{rollout}/v1/chat/completions", json=BODY)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "invalid_rollout"


def test_the_longest_id_is_fine(server: TrainerServer) -> None:
    with server.http() as http:
        rollout = "a" * 200
        assert http.post(f"/rollouts/{rollout}/v1/chat/completions", json=BODY).status_code == 200
        assert http.get(f"/api/rollouts/{rollout}").json()["calls"] == 1


@pytest.mark.parametrize("rollout", ["team/run-1", "a/reward", "b/trace", "50%/2%2Fc", "/d/", "e//f", "ä/ö"])
def test_an_id_with_slashes_is_read_rewarded_and_released(server: TrainerServer, rollout: str) -> None:
    """A header may have it; in a path, its slashes are quoted."""
    path = f"/api/rollouts/{quote(rollout, safe='')}"
    with server.http() as http:
        headers = {"X-ART-Rollout": rollout.encode("latin-1")}
        answer = http.post("/v1/chat/completions", json=BODY, headers=headers).json()
        assert http.get(path).json()["id"] == rollout
        assert http.post(f"{path}/reward", json={"reward": 0.5}).json()["reward"] == 0.5
        assert http.put(f"{path}/records/c%2Fd/run", json={"a": 1}).status_code == 204
        assert http.get(f"{path}/records/c%2Fd").json()["records"] == [{"a": 1}]
        missing = http.get(f"{path}/trace")
        assert (missing.status_code, "no client told what" in missing.text) == (404, True)
        shown = http.get(f"/ui/runs/{quote(rollout, safe='')}")
        assert (shown.status_code, answer["id"] in shown.text) == (200, True)
        assert f'href="/ui/runs/{quote(rollout, safe="")}"' in http.get("/ui/runs").text
        assert http.put(path, json={}).status_code == 422, "it has no base URL"
        assert http.delete(path).status_code == 204
        assert http.get(f"{path}/records/c%2Fd").status_code == 404


async def test_the_client_quotes_ids(server: TrainerServer) -> None:
    with server.http() as http:
        http.post("/v1/chat/completions", json=BODY, headers={"X-ART-Rollout": "client/run"})
    async with TrainerClient(server.url, TOKEN) as trainer:
        assert (await trainer.rollout("client/run")).id == "client/run"
        assert (await trainer.reward_rollout("client/run", 1.0)).reward == 1.0
