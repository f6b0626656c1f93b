"""Completions of another server: what this one takes, what it refuses, and what becomes of them."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_langgraph import TrainerClient
from tests.support.fuzzing import json_values, no_traceback, spoiled, thorough
from tests.support.homes.jobs import ask, finish
from tests.support.servers.trainer_server import TrainerServer


def rows_of_another(http: httpx.Client, name: str, count: int = 2) -> list[dict[str, Any]]:
    """Rows of this server, as another server with the same base model would have recorded them."""
    rows = [http.get(f"/api/completions/{ask(http, f'say {name}{i}', 'agent')}").json() for i in range(count)]
    return [
        {**row, "id": f"chatcmpl-{name}{i}", "server_id": "srv-other", "created": 1.0} for i, row in enumerate(rows)
    ]


def bring(http: httpx.Client, *rows: dict[str, Any]) -> httpx.Response:
    return http.post("/api/completions", json={"completions": rows})


def test_rows_of_another_server_are_kept_under_its_id(server: TrainerServer) -> None:
    with server.http() as http:
        rows = rows_of_another(http, "kept")
        assert bring(http, *rows).json() == {"added": 2, "known": 0}
        assert bring(http, *rows, rows[0]).json() == {"added": 0, "known": 2}
        here = http.post("/api/completions/find", json={"ids": ["x", rows[1]["id"], rows[0]["id"]]}).json()
        assert [row["id"] for row in here["completions"]] == [rows[1]["id"], rows[0]["id"]]
        found = here["completions"][1]
        assert time.time() - found.pop("created") < 100  # kept from now on, for as long as any other
        assert found == {name: value for name, value in rows[0].items() if name != "created"}


def test_half_of_a_character_in_an_answer_can_be_read(server: TrainerServer) -> None:
    with server.http() as http:
        (own,) = rows_of_another(http, "half", 1)
        message = {"role": "assistant", "content": "half \ud83d"}
        row = {**own, "rollout": "ro-half", "message": message}
        content = json.dumps({"completions": [row]})
        headers = {"Content-Type": "application/json"}
        assert http.post("/api/completions", content=content, headers=headers).status_code == 200
        assert json.loads(http.get(f"/api/completions/{row['id']}").text)["message"] == message
        many = http.post("/api/completions/find", json={"ids": [row["id"]]})
        assert json.loads(many.text)["completions"][0]["message"] == message
        assert http.get("/api/rollouts/ro-half").status_code == 200
        rewarded = http.post("/api/rollouts/ro-half/reward", json={"reward": 1})
        assert (rewarded.status_code, len(json.loads(rewarded.text)["rewards"])) == (200, 1)

    async def read() -> None:
        async with TrainerClient(server.url, server.headers["Authorization"].split()[1]) as client:
            assert (await client.completion(row["id"])).message == message
            assert (await client.rollout("ro-half")).rollout_id == "ro-half"

    asyncio.run(read())


@pytest.mark.parametrize(
    ("changes", "status", "code", "says"),
    [
        ({"tokenizer": "0" * 64}, 422, "other_tokenizer", "same base model"),
        ({"base_model": "meta-llama/Other"}, 422, "other_model", "'meta-llama/Other'"),
        ({"id": "../../x"}, 422, "not_a_completion", "letters"),
        ({"policy": "../x"}, 422, "not_a_completion", "no name of a policy"),
        ({"policy": None}, 422, "not_a_completion", "base model has none"),
        ({"version": -1}, 422, "not_a_completion", "-1"),
        ({"token_ids": [10**6]}, 422, "not_a_completion", "log-probabilities"),
        ({"token_ids": [10**6], "logprobs": [-1.0]}, 422, "not_a_completion", "vocabulary"),
        ({"prompt_token_ids": [-1]}, 422, "not_a_completion", "vocabulary"),
        ({"token_ids": "abc"}, 422, "invalid_request", "token_ids"),
    ],
)
def test_rows_that_this_server_cannot_use_are_refused_and_none_is_kept(
    server: TrainerServer, changes: dict[str, Any], status: int, code: str, says: str
) -> None:
    with server.http() as http:
        good, bad = rows_of_another(http, "refused")
        answer = bring(http, good, {**bad, **changes})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert says in answer.json()["error"]["message"]
        assert http.get(f"/api/completions/{good['id']}").status_code == 404


def test_no_row_is_overwritten(server: TrainerServer) -> None:
    with server.http() as http:
        own = http.get(f"/api/completions/{ask(http, 'say own', 'agent')}").json()
        assert bring(http, own).json() == {"added": 0, "known": 1}
        for changed in ({"server_id": "srv-other"}, {"message": {"role": "assistant", "content": "forged"}}):
            answer = bring(http, {**own, **changed})
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "other_content")
        assert http.get(f"/api/completions/{own['id']}").json() == own
        forged = bring(http, {**own, "id": "chatcmpl-forged"})
        assert (forged.status_code, forged.json()["error"]["code"]) == (409, "not_recorded")


def test_a_row_of_another_server_cannot_enter_a_rollout_of_this_one(server: TrainerServer) -> None:
    with server.http() as http:
        (foreign,) = rows_of_another(http, "intruder", 1)
        ask(http, "say victim", "agent", "ro-victim")
        answer = bring(http, {**foreign, "policy": "zz", "rollout": "ro-victim"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "rollout_of_this_server")
        assert "'ro-victim'" in answer.json()["error"]["message"]
        assert http.get(f"/api/completions/{foreign['id']}").status_code == 404
        assert http.get("/api/rollouts/ro-victim").json()["calls"] == 1


def test_a_warm_start_imitates_them_and_a_step_leaves_them_out(server: TrainerServer) -> None:
    with server.http() as http:
        assert http.post("/api/policies", json={"name": "guest"}).status_code == 201
        rows = [{**row, "policy": "guest", "version": 0} for row in rows_of_another(http, "guest")]
        assert bring(http, *rows).status_code == 200
        runs = [{"id": f"t{i}", "reward": float(i), "completions": [row["id"]]} for i, row in enumerate(rows)]
        body = {"groups": [{"scenario_id": "s", "trajectories": runs}]}
        step = finish(http, http.post("/api/policies/guest/steps", json=body))["result"]
        assert step["metrics"]["completions_skipped"] == {"other_server": 2}
        assert step["metrics"]["reward_by_version"] == {}
        assert "2 other_server" in step["metrics"]["skipped"]
        warm = finish(http, http.post("/api/policies/guest/sft", json={"trajectories": runs}))
        assert warm["result"]["version"] == 1, warm


names = st.sampled_from(["messages", "role", "content", "tool_calls", "function", "arguments", "name", "instructions"])
others = json_values(names) | st.sampled_from(["agent", "complete", "[" * 3000, -1, 1e300, "\ud83d"])
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
REQUEST = {
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "say a"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
    "stop": ["x"],
    "api": "responses",
    "instructions": 1,
}


@pytest.fixture(scope="module")
def foreign(server: TrainerServer) -> Iterator[tuple[httpx.Client, dict[str, Any]]]:
    """A client, one for all examples, and a row from which others are made."""
    with server.http() as http:
        yield http, rows_of_another(http, "fuzz", 1)[0]


@thorough(40)
@given(data=st.data())
def test_whatever_row_is_brought_all_that_reads_it_works(
    foreign: tuple[httpx.Client, dict[str, Any]], data: st.DataObject
) -> None:
    http, known = foreign
    with no_traceback():
        one = f"chatcmpl-{uuid.uuid4().hex}"
        given = {**known, "id": one, "rollout": f"r-{one}", "request": REQUEST}
        given["message"] = {"role": "assistant", "content": "a", "tool_calls": [CALL]}
        row = data.draw(spoiled(given, others))
        headers = {"Content-Type": "application/json"}
        written = json.dumps({"completions": [row]})
        answer = http.post("/api/completions", content=written, headers=headers)
        assert answer.status_code in (200, 409, 422), (row, answer.text)
        if answer.status_code != 200:
            assert answer.json()["error"]["message"]
            return
        kept, rollout = row["id"], row.get("rollout")
        again = http.post("/api/completions", content=written, headers=headers)
        assert again.json() == {"added": 0, "known": 1}
        assert http.get(f"/api/completions/{kept}").status_code == 200
        assert http.get(f"/ui/completions/{kept}").status_code == 200
        if rollout == f"r-{one}":
            seen = http.get(f"/api/rollouts/{rollout}")
            assert [completion["id"] for completion in seen.json()["completions"]] == [kept]
            assert http.get(f"/ui/runs/{rollout}").status_code == 200
        body = {"model": "agent", "input": "say more", "previous_response_id": kept, "max_output_tokens": 9}
        assert http.post("/v1/responses", json=body).status_code in (200, 400, 404)
