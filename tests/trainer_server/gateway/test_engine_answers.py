"""Whatever an engine answers, the client gets an answer or an error, and the ledger has what the client got."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzzing import BIG, deep, no_traceback, spoiled, thorough
from tests.support.servers.trainer_server import TrainerServer

TOKENS = [104, 105]
LOGPROBS = {"content": [{"token": chr(token), "logprob": -0.5, "bytes": None, "top_logprobs": []} for token in TOKENS]}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
HEAD = {"id": "chatcmpl-x", "object": "chat.completion", "created": 1, "model": "base"}
CALL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
WHOLE = {
    **HEAD,
    "prompt_token_ids": [1, 2, 3],
    "usage": USAGE,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "reasoning": None, "tool_calls": [CALL]},
            "logprobs": LOGPROBS,
            "token_ids": TOKENS,
            "finish_reason": "tool_calls",
            "stop_reason": None,
        }
    ],
}
TEXT = {
    **HEAD,
    "usage": USAGE,
    "choices": [
        {
            "index": 0,
            "text": "hi",
            "logprobs": {"tokens": ["h", "i"], "token_logprobs": [-0.5, -0.5], "top_logprobs": [{"h": -0.5}, None]},
            "finish_reason": "stop",
            "token_ids": TOKENS,
            "prompt_token_ids": [1, 2, 3],
        }
    ],
}
TURN = {"messages": [{"role": "user", "content": "say hi"}]}
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/v1/chat/completions": ({**TURN, "logprobs": True, "return_token_ids": True}, WHOLE),
    "/v1/messages": ({**TURN, "max_tokens": 20}, WHOLE),
    "/v1/responses": ({"input": "say hi", "include": ["message.output_text.logprobs"]}, WHOLE),
    "/v1/completions": ({"prompt": "say hi", "logprobs": 1}, TEXT),
}
"""By path: a request, and the engine's answer to it, which the fuzz changes."""

others = st.sampled_from(
    [None, True, -1, 0, 1, 2, 2**31, BIG, -1e300, 1e300, "", "hi", "\ud83d", "[" * 3000, [], {}, [[]], [5], ["x"],
     {"content": 5}, deep(200), float("nan"), float("inf")]
)  # fmt: skip


def chunks_of(answer: dict[str, Any]) -> list[Any]:
    """An answer as vLLM streams it."""
    (choice,) = answer["choices"]
    if "text" in choice:
        return [{**HEAD, "choices": [choice]}, {**HEAD, "choices": [], "usage": USAGE}]
    head = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    said = {**head, "delta": {"content": "h"}, "logprobs": {"content": LOGPROBS["content"][:1]}, "token_ids": [104]}
    call = {"tool_calls": [{"index": 0, **CALL}]}
    last = {**head, "delta": call, "logprobs": {"content": LOGPROBS["content"][1:]}, "token_ids": [105]}
    return [
        {**HEAD, "choices": [head], "prompt_token_ids": [1, 2, 3]},
        {**HEAD, "choices": [said]},
        {**HEAD, "choices": [{**last, "finish_reason": "tool_calls"}]},
        {**HEAD, "choices": [], "usage": USAGE},
    ]


def rows(http: httpx.Client, rollout: str) -> list[dict[str, Any]]:
    """The completions of a rollout that are whole."""
    answer = http.get(f"/api/rollouts/{rollout}")
    return [] if answer.status_code == 404 else [row for row in answer.json()["completions"] if row["error"] is None]


@dataclass(frozen=True, slots=True)
class Client:
    """A client of the server whose engine says what it is told to. One for all examples: a new one takes 50 ms."""

    http: httpx.Client
    base: str
    engine: dict[str, Any]

    def ask(self, path: str, raw: str | None, *, stream: bool) -> tuple[httpx.Response, list[dict[str, Any]]]:
        """An answer, and what the ledger has of it. raw: what the engine says; None: what it would say."""
        rollout = f"r-{uuid.uuid4().hex}"
        body = {"model": self.base, **ASKED[path][0], "stream": stream}
        self.engine["raw"] = raw
        with no_traceback():
            answer = self.http.post(path, json=body, headers={"X-ART-Rollout": rollout})
            return answer, rows(self.http, rollout)


@pytest.fixture(scope="module")
def client(server: TrainerServer) -> Iterator[Client]:
    with server.http() as http:
        yield Client(http, server.app.state.server.identity.base.name, server.engine)
    server.engine["raw"] = None


def events_of(chunks: list[Any]) -> str:
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


@pytest.mark.slow
@pytest.mark.parametrize("path", ASKED)
@thorough(20)
@given(data=st.data())
def test_a_whole_answer(client: Client, path: str, data: st.DataObject) -> None:
    raw = json.dumps(data.draw(spoiled(ASKED[path][1], others)))
    answer, kept = client.ask(path, raw, stream=False)
    if answer.status_code == 200:
        assert len(kept) == 1
        answer.json()
    else:
        assert kept == []
        assert (answer.status_code, answer.json()["error"]["code"]) in [
            (502, "engine_error"), (502, "missing_tokens"), (503, "engine_lost"), (503, "engine_not_ready")
        ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", ASKED)
@thorough(20)
@given(data=st.data())
def test_a_streamed_answer(client: Client, path: str, data: st.DataObject) -> None:
    chunks = data.draw(spoiled(chunks_of(ASKED[path][1]), others))
    raw = events_of(chunks if isinstance(chunks, list) else [chunks])
    answer, kept = client.ask(path, raw, stream=True)
    ended = any(mark in answer.text for mark in ("data: [DONE]", '"message_stop"', '"response.completed"',
                                                 '"response.incomplete"'))  # fmt: skip
    if answer.status_code == 200 and ended:
        assert len(kept) == 1
    else:
        assert kept == []
        assert "error" in answer.text
        assert answer.status_code in (200, 502, 503)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("length", [0, 300])
def test_an_answer_that_is_cut_off(client: Client, length: int, stream: bool) -> None:
    """Something else may listen there: the engine is looked at before it gets another request."""
    path = "/v1/chat/completions"
    raw = events_of(chunks_of(WHOLE)) if stream else json.dumps(WHOLE)
    answer, kept = client.ask(path, raw[:length], stream=stream)
    assert kept == []
    assert "engine_lost" in answer.text
    assert client.ask(path, None, stream=stream)[0].status_code == 200


@pytest.mark.parametrize("path", ASKED)
def test_what_is_not_spoiled_is_answered(client: Client, path: str) -> None:
    answer, kept = client.ask(path, json.dumps(ASKED[path][1]), stream=False)
    assert (answer.status_code, len(kept)) == (200, 1), answer.text
    answer, kept = client.ask(path, events_of(chunks_of(ASKED[path][1])), stream=True)
    assert (answer.status_code, len(kept)) == (200, 1), answer.text


def test_an_engine_whose_answer_cannot_be_used_stays_in_service(client: Client) -> None:
    raw = json.dumps({**WHOLE, "choices": [{**WHOLE["choices"][0], "token_ids": [-1, 5]}]})
    answer, kept = client.ask("/v1/chat/completions", raw, stream=False)
    assert (answer.status_code, kept) == (502, [])
    assert "choices.0.token_ids.0" in answer.json()["error"]["message"]
    assert client.http.get("/api/engines").json()["engines"][0]["ready"]


@pytest.mark.parametrize(
    ("code", "expected"), [(400, (400, "invalid_request")), (429, (503, "engine_error")), (500, (503, "engine_lost"))]
)
def test_an_error_as_the_first_event_is_answered_as_the_status_would_be(
    client: Client, code: int, expected: tuple[int, str]
) -> None:
    """vLLM checks `logit_bias`, `stop_token_ids` and grammars of a stream after it has sent the headers."""
    error = {"message": "token 50256 is out of vocabulary", "type": "BadRequestError", "code": code}
    asked = len(client.engine["requests"])
    answer, kept = client.ask("/v1/chat/completions", events_of([{"error": error}]), stream=True)
    told = answer.json()["error"]
    assert ((answer.status_code, told["code"]), kept) == (expected, [])
    assert "token 50256 is out of vocabulary" in told["message"]
    assert "{" not in told["message"]
    assert len(client.engine["requests"]) - asked == 1 + (code == 500), "a refused request is not sent again"
    later = events_of([*chunks_of(WHOLE)[:2], {"error": {**error, "code": 400}}])
    assert "engine_lost" in client.ask("/v1/chat/completions", later, stream=True)[0].text
