"""A streamed answer and a whole one are the same: in the ledger, and to a client that puts its parts together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.fuzzing import json_values, no_traceback, thorough
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.gateway.answer import merge_delta

TEXTS = st.text(st.characters(codec="latin-1", exclude_characters="|\n\x03"), min_size=1, max_size=12)
ARGUMENTS = json_values(st.sampled_from(["text", "a"])).map(json.dumps) | TEXTS | st.just("")
SAID = (
    st.builds("say {}".format, TEXTS)
    | st.builds("cut {}".format, TEXTS)
    | st.builds("think {}|{}".format, TEXTS, TEXTS)
    | st.builds("call look {}".format, ARGUMENTS)
    | st.lists(st.tuples(st.sampled_from(["look", "write"]), json_values(st.just("a"))), min_size=1, max_size=3).map(
        lambda calls: f"calls {json.dumps(calls)}"
    )
)


@pytest.fixture(scope="module")
def http(server: TrainerServer) -> Iterator[httpx.Client]:
    """One for all examples: a new one takes 50 ms."""
    with server.http() as client:
        yield client


def ask(http: httpx.Client, said: str, *, stream: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a client gets of an answer, with its reason to end, and what the ledger has of it."""
    body = {"model": "agent", "messages": [{"role": "user", "content": said}], "max_tokens": 900, "stream": stream}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    got: dict[str, Any] = {"content": None}
    if stream:
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    else:
        choices = answer.json()["choices"]
    for choice in choices:
        merge_delta(got, choice.get("delta") or choice.get("message") or {})
        got["finish_reason"] = choice["finish_reason"]
    got["content"] = got["content"] or None
    found = http.get(f"/api/completions/{answer.headers['X-ART-Completion']}").json()
    return got, {name: found[name] for name in ("message", "finish_reason", "token_ids", "status", "untrainable")}


def test_the_last_chunk_names_the_completion_with_and_without_usage(http: httpx.Client) -> None:
    """openai's helpers of streams keep what the last chunk says."""
    for options in ({}, {"stream_options": {"include_usage": True}}):
        body = {"model": "agent", "messages": [{"role": "user", "content": "say hi"}], "stream": True, **options}
        answer = http.post("/v1/chat/completions", json=body)
        *_, last, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        assert done == "[DONE]"
        assert json.loads(last)["system_fingerprint"] == answer.headers["X-ART-Completion"]
        assert json.loads(last)["object"] == "chat.completion.chunk"


@thorough(25)
@given(said=SAID.filter(lambda said: len(said) < 900))
@example(said='call look "soon"')
@example(said="call look null")
@example(said="call look [1]")
@example(said="call look ")
@example(said='call look {"text": "He said "hi""}')
@example(said='calls [["look", {"a": 1}], ["look", "soon"]]')
def test_a_stream_is_the_whole_answer(http: httpx.Client, said: str) -> None:
    with no_traceback():
        whole, streamed = (ask(http, said, stream=stream) for stream in (False, True))
    assert streamed == whole
    got, row = whole
    calls = [call["function"]["arguments"] for call in got.get("tool_calls") or ()]
    for arguments in calls:
        try:
            assert isinstance(json.loads(arguments), dict), "clients cannot read it"
        except ValueError:
            assert arguments in said, "what is no JSON stays as the policy wrote it"
    assert [call["function"]["arguments"] for call in row["message"].get("tool_calls") or ()] == calls
    assert (row["message"]["content"] or None) == got["content"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("said", "content", "calls", "reason"),
    [
        ('call look "soon"', 'call look "soon"', [], "stop"),
        ("call look null", "call look null", [], "stop"),
        ("call look [1]", "call look [1]", [], "stop"),
        ("call look ", None, ["{}"], "tool_calls"),
        ('calls [["look", {"a": 1}], ["look", 3]]', '{"name": "look", "arguments": 3}', ['{"a": 1}'], "tool_calls"),
        (
            'call write {"text": "He said "hi""}',
            None,
            ['{"text": "He said "hi""}'],
            "tool_calls",
        ),
    ],
)
def test_calls_that_are_no_object(
    http: httpx.Client, said: str, content: str | None, calls: list[str], reason: str, stream: bool
) -> None:
    got, _ = ask(http, said, stream=stream)
    assert got["content"] == content
    assert [call["function"]["arguments"] for call in got.get("tool_calls") or ()] == calls
    assert got["finish_reason"] == reason
