"""The gateway: exact tokens in the ledger before the last byte leaves; errors in OpenAI's shape; leases."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from contextlib import closing
from typing import Any

import httpx
import pytest

from testbed.engine_app import PARAGRAPH, UNIFORM
from tests.support.homes.jobs import finish
from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TrainerServer, row


def chat(server: TrainerServer, content: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    with server.http() as http:
        full = {"model": "agent", "messages": [{"role": "user", "content": content}], "max_tokens": 50, **body}
        return http.post("/v1/chat/completions", json=full, headers=headers)


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_an_answer_is_ordinary_and_its_tokens_are_in_the_ledger(server: TrainerServer) -> None:
    answer = chat(server, "say hello", temperature=0.7).json()
    assert answer["choices"][0]["message"]["content"] == "hello"
    assert answer["choices"][0]["logprobs"] is None
    assert "token_ids" not in answer["choices"][0]
    assert "prompt_token_ids" not in answer
    assert answer["system_fingerprint"] == answer["id"]
    found = row(server, answer["id"])
    assert found["token_ids"] == [ord(char) for char in "hello"]
    assert found["prompt_token_ids"] == [ord(char) for char in "say hello"]
    assert found["logprobs"] == [UNIFORM] * 5
    assert (found["policy"], found["version"], found["status"]) == ("agent", 0, "complete")
    assert (found["sampling"]["temperature"], found["sampling"]["max_tokens"]) == (0.7, 50)


def test_sampled_tokens_stay_though_their_text_is_tokenized_otherwise(server: TrainerServer) -> None:
    asked = {"role": "user", "content": "say a\n\nb"}
    first = chat(server, "say a\n\nb").json()
    answered = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    second = chat(server, "", messages=[asked, answered, {"role": "user", "content": "say c"}]).json()
    sampled, prompted = row(server, first["id"])["token_ids"], row(server, second["id"])["prompt_token_ids"]
    assert sampled == [ord("a"), ord("\n"), ord("\n"), ord("b")]
    assert PARAGRAPH in prompted, "the second prompt has the answer in other tokens"
    assert row(server, first["id"])["token_ids"] == sampled


def test_streaming_gives_the_same_row_and_the_id_once(server: TrainerServer) -> None:
    answer = chat(server, "say hello", stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = events(answer.text)
    ids = {chunk["id"] for chunk in chunks}
    assert len(ids) == 1
    assert [chunk["system_fingerprint"] for chunk in chunks if chunk.get("system_fingerprint")] == list(ids)
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "hello"
    assert not any("usage" in chunk for chunk in chunks)
    found = row(server, ids.pop())
    assert found["token_ids"] == [ord(char) for char in "hello"]
    assert found["message"]["content"] == "hello"


def test_usage_is_streamed_when_asked_for(server: TrainerServer) -> None:
    chunks = events(chat(server, "say hi", stream=True, stream_options={"include_usage": True}).text)
    assert chunks[-1]["usage"]["completion_tokens"] == 2


def test_the_row_is_there_before_the_last_byte(server: TrainerServer) -> None:
    with server.http() as http:
        body = {"model": "agent", "messages": [{"role": "user", "content": "say hello"}], "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                if '"finish_reason":"stop"' in line:
                    assert row(server, json.loads(line[6:])["id"])["status"] == "complete"
                    return
    pytest.fail("no finish_reason was streamed")


def test_several_choices_have_an_id_each(server: TrainerServer) -> None:
    answer = chat(server, "say hi", n=3).json()
    for one in (answer["id"], f"{answer['id']}.1", f"{answer['id']}.2"):
        assert row(server, one)["token_ids"] == [ord("h"), ord("i")]


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


def test_a_tool_call_keeps_its_tokens_streamed_and_not(server: TrainerServer) -> None:
    whole = chat(server, 'call add {"a": 1}').json()
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "add"
    chunks = events(chat(server, 'call add {"a": 1}', stream=True).text)
    rows = [row(server, one) for one in (whole["id"], chunks[0]["id"])]
    assert rows[0]["token_ids"] == rows[1]["token_ids"] == [ord(char) for char in 'call add {"a": 1}']
    assert rows[0]["message"]["tool_calls"] == rows[1]["message"]["tool_calls"]


@pytest.mark.parametrize(
    ("body", "status", "code", "word"),
    [
        ({"model": "nobody"}, 404, "model_not_found", "nobody"),
        ({"model": "agent@99"}, 404, "model_not_found", "99"),
        ({"model": "agent@x"}, 404, "model_not_found", "x"),
        ({"model": None}, 400, None, "model"),
        ({"messages": []}, 400, None, "messages"),
        ({"temperature": "hot"}, 400, None, "temperature"),
        ({"temperature": -1}, 400, None, "-1"),
        ({"n": 0}, 400, None, "n"),
        ({"max_tokens": 0}, 400, None, "max_tokens"),
        ({"frobnicate": 1}, 400, "unknown_parameter", "frobnicate"),
        ({"chat_template": "x"}, 400, "unknown_parameter", "chat_template"),
        ({"stream": True, "n": 2}, 400, None, "n > 1"),
    ],
)
def test_bad_requests_get_an_error_that_names_the_value(
    server: TrainerServer, body: dict[str, Any], status: int, code: str | None, word: str
) -> None:
    answer = chat(server, "hi", **body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert word in error["message"]


def test_half_a_surrogate_pair_is_in_nobodys_way(server: TrainerServer) -> None:
    half = '{"model": "agent", "messages": [{"role": "user", "content": "\\ud83d"}]}'
    headers = {"Content-Type": "application/json"}
    with server.http() as http:
        answer = http.post("/v1/chat/completions", content=half, headers=headers)
        assert answer.status_code == 400
        assert "'\\ud83d', half of a character" in answer.json()["error"]["message"]
    assert chat(server, "say hello").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_context(server: TrainerServer, stream: bool) -> None:
    for limit in ({"max_tokens": 10}, {"max_tokens": None}):
        answer = chat(server, "x" * 3000, stream=stream, **limit)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_without_max_tokens_a_default_applies_and_is_recorded(server: TrainerServer) -> None:
    assert row(server, chat(server, "say a", max_tokens=None).json()["id"])["sampling"]["max_tokens"] == 1024
    long = "say " + "a" * 1500
    assert row(server, chat(server, long, max_tokens=None).json()["id"])["sampling"]["max_tokens"] == 2000 - len(long)


def test_answers_without_tokens_are_refused_and_recorded_as_failed(server: TrainerServer) -> None:
    assert chat(server, "no tokens").json()["error"]["code"] == "missing_tokens"
    assert '"code":"missing_tokens"' in chat(server, "no tokens", stream=True).text


def recorded(server: TrainerServer, rollout: str) -> list[dict[str, Any]]:
    """The rows of a rollout, once there are any: those of failed calls are written in the background."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with closing(sqlite3.connect(server.home.ledger)) as db:
            rows = db.execute("SELECT record FROM completions WHERE rollout = ?", (rollout,)).fetchall()
        if rows:
            return [json.loads(record) for (record,) in rows]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("content", ["slow", "after 60 say hi"])
async def test_a_client_that_goes_away_aborts_the_generation(server: TrainerServer, stream: bool, content: str) -> None:
    """Also before the first byte of a stream."""
    before, rollout, asked = server.engine["aborted"], f"gone-{content}-{stream}", len(server.engine["requests"])
    body = {"model": "agent", "messages": [{"role": "user", "content": content}], "stream": stream}
    headers = {**server.headers, "X-ART-Rollout": rollout}
    async with httpx.AsyncClient(timeout=PATIENCE) as http, asyncio.timeout(PATIENCE):
        asking = asyncio.create_task(http.post(f"{server.url}/v1/chat/completions", json=body, headers=headers))
        while len(server.engine["requests"]) == asked:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)  # for the first bytes of a stream
        asking.cancel()
        while server.engine["aborted"] == before:
            await asyncio.sleep(0.02)
    assert [found["status"] for found in recorded(server, rollout)] == ["aborted"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        ("x" * 3000, "refused", "This model's maximum context length is 2000 tokens."),
        (
            "no tokens",
            "failed",
            "the engine answered without exact tokens; it must be vLLM that honours return_token_ids",
        ),
    ],
)
def test_an_error_of_the_engine_is_recorded(
    server: TrainerServer, stream: bool, content: str, status: str, words: str
) -> None:
    rollout = f"error-{content[:2]}-{stream}"
    answer = chat(server, content, {"X-ART-Rollout": rollout}, stream=stream)
    (found,) = recorded(server, rollout)
    assert (found["status"], found["error"]) == (status, words)
    assert answer.headers["X-ART-Completion"] == found["id"]
    with server.http() as http:
        (call,) = http.get(f"/api/rollouts/{rollout}").json()["completions"]
    assert call["error"] == f"{status}: {words}"


def test_an_answer_whose_tokens_did_not_all_arrive_is_not_trained(
    server: TrainerServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Some versions of vLLM leave chunks of a stream out, and the token ids in them."""
    with server.http() as http:
        assert http.post("/api/policies", json={"name": "gaps"}).status_code == 201
    whole = row(server, chat(server, "gap hello", model="gaps").json()["id"])
    assert whole["untrainable"] is None
    with caplog.at_level(logging.WARNING, "trainer_server"):
        chunks = events(chat(server, "gap hello", model="gaps", stream=True).text)
    cut = row(server, chunks[0]["id"])
    assert (cut["status"], len(cut["token_ids"]), len(cut["logprobs"])) == ("complete", 4, 4)
    assert cut["untrainable"] == "the engine sampled 5 tokens, and sent 4 token ids"
    assert f"{cut['id']}" in caplog.text
    assert "will not be trained: the engine sampled 5 tokens" in caplog.text
    with server.http() as http:
        refs = [
            {"id": f"t{reward}", "reward": reward, "completions": [one["id"]]}
            for reward, one in ((0.0, whole), (1.0, cut))
        ]
        body = {"groups": [{"scenario_id": "s", "trajectories": refs}]}
        job = finish(http, http.post("/api/policies/gaps/steps", json=body))
    assert job["result"]["metrics"]["completions_skipped"] == {"incomplete": 1}


def test_streams_end_when_the_server_stops(server: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.app.state.server.gateway, "stopping", stopping := asyncio.Event())
    body = {"model": "agent", "messages": [{"role": "user", "content": "slow"}], "stream": True}
    headers = {"X-ART-Rollout": "stopped"}
    with server.http() as http, http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert '"role":"assistant"' in next(lines)
        stopping.set()
        assert '"code":"server_stopping"' in list(lines)[-1]
    assert [found["status"] for found in recorded(server, "stopped")] == ["failed"]
    refused = chat(server, "say hi", stream=True)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")


def test_an_engine_that_dies_in_the_middle_of_a_stream(server: TrainerServer) -> None:
    text = chat(server, "die", stream=True).text
    assert "the engine went away" in text
    assert "[DONE]" not in text
    deadline = time.monotonic() + PATIENCE
    while chat(server, "say again").status_code != 200:
        assert time.monotonic() < deadline


def test_the_token_is_needed(server: TrainerServer) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = httpx.get(f"{server.url}/v1/models", headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(f"{server.url}/health").status_code == 200
    page = httpx.get(f"{server.url}/", follow_redirects=True)
    assert (page.status_code, page.url.path) == (200, "/ui/login")


def test_engine_routes_are_not_reachable(server: TrainerServer) -> None:
    with server.http() as http:
        for path in ("/v1/load_lora_adapter", "/tokenize", "/invocations", "/v1/embeddings"):
            assert http.post(path, json={}).status_code == 404


def test_models_lists_base_policies_and_versions(server: TrainerServer) -> None:
    with server.http() as http:
        ids = [one["id"] for one in http.get("/v1/models").json()["data"]]
    assert ids[:3] == ["base", "agent", "agent@0"]


def test_the_base_model_has_no_policy(server: TrainerServer) -> None:
    found = row(server, chat(server, "say hi", model="base").json()["id"])
    assert found["policy"] is None
    assert found["version"] is None


@pytest.mark.parametrize(
    ("body", "constrained"),
    [
        ({}, []),
        ({"top_p": 0.9}, ["top_p"]),
        ({"top_k": 5, "presence_penalty": 0.5}, ["top_k", "penalties"]),
        ({"response_format": {"type": "json_object"}}, ["grammar"]),
        ({"tool_choice": "required"}, ["grammar"]),
        ({"tool_choice": "auto"}, []),
        ({"tools": [TOOL]}, []),
        ({"tools": [TOOL], "parallel_tool_calls": False}, ["grammar"]),
        ({"tools": [TOOL], "parallel_tool_calls": False, "tool_choice": "none"}, []),
        ({"parallel_tool_calls": False}, []),
        ({"tools": [{**TOOL, "function": {**TOOL["function"], "strict": True}}]}, ["grammar"]),
    ],
)
def test_constraints_are_recorded(server: TrainerServer, body: dict[str, Any], constrained: list[str]) -> None:
    assert row(server, chat(server, "say hi", **body).json()["id"])["constrained"] == constrained


def test_what_the_trainer_cannot_see_is_answered_and_not_trained(server: TrainerServer) -> None:
    for image in ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, {"image_url": "data:,"}):
        messages = [{"role": "user", "content": [{"type": "text", "text": "say what it is"}, image]}]
        answer = chat(server, "", messages=messages)
        assert answer.status_code == 200, answer.text
        assert "images" in row(server, answer.json()["id"])["untrainable"]
    words = [{"role": "user", "content": [{"type": "text", "text": "say it"}, "again"]}]
    assert row(server, chat(server, "", messages=words).json()["id"])["untrainable"] is None


def test_a_forced_tool_is_held_to_its_schema(server: TrainerServer) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        assert row(server, chat(server, "say {}", tools=[TOOL], tool_choice=choice).json()["id"])["constrained"]
        assert server.engine["requests"][-1]["tools"][0]["function"]["strict"] is True
    chat(server, "say hi", tools=[TOOL])
    assert server.engine["requests"][-1]["tools"] == [TOOL]


def test_a_call_with_arguments_that_are_no_object_is_text(server: TrainerServer) -> None:
    answer = chat(server, "call add [1, 2]").json()
    (choice,) = answer["choices"]
    assert choice["message"]["tool_calls"] == []
    assert choice["message"]["content"] == "call add [1, 2]", "what the model wrote, in the format of any parser"
    assert choice["finish_reason"] == "stop"
    assert row(server, answer["id"])["status"] == "complete"


def test_a_header_overrides_the_temperature(server: TrainerServer) -> None:
    answer = chat(server, "say hi", {"X-ART-Temperature": "0.9"}, temperature=0.0)
    assert row(server, answer.json()["id"])["sampling"]["temperature"] == 0.9
    assert server.engine["requests"][-1]["temperature"] == 0.9
    assert chat(server, "say hi", {"X-ART-Temperature": "warm"}).status_code == 400


def test_the_seed_is_recorded_and_not_forwarded_on_cpus(server: TrainerServer) -> None:
    assert row(server, chat(server, "say hi", seed=7).json()["id"])["sampling"]["seed"] == 7
    assert "seed" not in server.engine["requests"][-1]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ({"arguments": {"a": 1}}, '{"a": 1}'),
        ({"arguments": '{"a":1}'}, '{"a":1}'),
        ({"arguments": ""}, "{}"),
        ({"arguments": None}, "{}"),
        ({}, "{}"),
        ({"arguments": "soon"}, "soon"),
    ],
)
def test_calls_of_earlier_turns_reach_the_engine_as_it_insists_on(
    server: TrainerServer, function: dict[str, Any], text: str
) -> None:
    """The engine answers 400 to arguments that are no text, and to a call without id or type, as vLLM does."""
    called = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", **function}}]}
    messages = [{"role": "user", "content": "x"}, called, {"role": "tool", "tool_call_id": "call_1_0", "content": "1"}]
    answer = chat(server, "", messages=[*messages, {"role": "user", "content": "say hi"}])
    assert answer.status_code == 200, answer.text
    (sent,) = server.engine["requests"][-1]["messages"][1]["tool_calls"]
    assert sent == {"id": "call_1_0", "type": "function", "function": {"name": "look", "arguments": text}}
