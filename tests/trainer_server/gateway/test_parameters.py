"""Parameters of chat requests: each that OpenAI's SDK has is decided on; what changes nothing is dropped and noted."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from openai.types.chat import completion_create_params as sdk

from tests.support.chat_requests import parse
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.parameters import OPENAI, PARAMETERS, Handling
from trainer_server.gateway.sampler import engine_request

MESSAGES = [{"role": "user", "content": "say hi"}]
DROPPED: dict[str, Any] = {
    "audio": {"voice": "ash", "format": "mp3"},
    "metadata": {"run": "1"},
    "modalities": ["text"],
    "prediction": {"type": "content", "content": "hi"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "u",
    "service_tier": "flex",
    "store": True,
    "user": "u",
    "verbosity": "low",
}


def test_every_parameter_of_the_sdk_is_decided_on() -> None:
    """Fails when OpenAI's SDK has a new one: decide whether it changes the answer, and add it to `OPENAI`."""
    theirs: set[str] = set()
    for kind in (
        sdk.CompletionCreateParamsBase,
        sdk.CompletionCreateParamsNonStreaming,
        sdk.CompletionCreateParamsStreaming,
    ):
        theirs |= set(kind.__annotations__)
    assert theirs - set(OPENAI) == set()


def test_what_is_dropped_is_listed_here() -> None:
    assert {name for name, handling in PARAMETERS.items() if handling == Handling.drop} == set(DROPPED)


def test_what_changes_nothing_is_dropped_noted_and_logged_once(
    server: TrainerServer, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"model": "agent", "messages": MESSAGES, "max_tokens": 5, "function_call": None, **DROPPED}
    with server.http() as http, caplog.at_level(logging.INFO, "trainer_server"):
        answers = [http.post("/v1/chat/completions", json=body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
        row = http.get(f"/api/completions/{answers[0].json()['id']}").json()
    assert row["dropped"] == sorted(DROPPED)
    assert row["constrained"] == []
    assert not set(DROPPED) & set(server.engine["requests"][-1])
    assert caplog.text.count("clients send `prediction`") == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"functions": [{"name": "add"}]}, "use `tools`"),
        ({"function_call": "auto"}, "use `tool_choice`"),
        ({"modalities": ["text", "audio"]}, "answers are text"),
        ({"moderation": {"model": "omni-moderation-latest"}}, "moderate inputs and answers in the agent"),
        ({"web_search_options": {"search_context_size": "low"}}, "give the agent a search tool"),
        ({"frobnicate": None}, "unknown parameter: 'frobnicate'"),
    ],
)
def test_what_would_change_the_answer_is_refused(body: dict[str, Any], words: str) -> None:
    with pytest.raises(APIError, match=words) as refused:
        parse({"model": "agent", "messages": MESSAGES, **body})
    assert refused.value.status == 400
    assert refused.value.param == next(iter(body))


def test_the_engine_gets_conversations_as_they_are() -> None:
    """Warm starts render what the gateway would send; see `Renderer`."""
    tools = [{"type": "function", "function": {"name": "add"}}]
    body = {"model": "agent", "messages": MESSAGES, "tools": tools, "chat_template_kwargs": {"enable_thinking": False}}
    asked = engine_request(parse(body), "agent@1")
    assert {name: asked[name] for name in body if name != "model"} == {k: v for k, v in body.items() if k != "model"}
