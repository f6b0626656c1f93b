"""Values of parameters: whatever JSON a client sends, it gets an answer or an error that names the parameter."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.chat_requests import parse
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.parameters import PARAMETERS, ChatBody, Handling
from trainer_server.gateway.parser import ChatRequest
from trainer_server.gateway.recorder import constraints, ledger_request
from trainer_server.gateway.sampler import engine_request
from trainer_server.wire.completions import MIN_TEMPERATURE

MESSAGES = [{"role": "user", "content": "say hi"}]
TOOL = {"type": "function", "function": {"name": "add"}}

words = st.sampled_from(["type", "function", "name", "content", "role", "json_schema", "strict", "url", "auto", "user"])
scalars = (
    st.none() | st.booleans() | st.integers() | st.just(10**300) | st.floats() | st.text(max_size=5) | words
    | st.just("\ud83d")
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.text(max_size=3), inner, max_size=3)
)
tools = st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": values}), max_size=2)
spoken = st.lists(
    st.fixed_dictionaries({"role": words, "content": values}, optional={"tool_calls": values}), max_size=2
)
SHAPED = {"tools": tools, "messages": spoken, "response_format": st.fixed_dictionaries({"type": words})}


@settings(max_examples=500)
@given(st.data())
def test_any_value_of_any_parameter_is_taken_or_refused_by_name(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(PARAMETERS)))
    body = {"model": "m", "messages": MESSAGES, name: data.draw(values | SHAPED.get(name, values))}
    taken = refusal_or_request(body)
    if isinstance(taken, APIError):
        assert (taken.status, taken.param) == (400, name)
        return
    json.dumps(engine_request(taken, "m@1"), allow_nan=False).encode()
    json.dumps(ledger_request(taken), ensure_ascii=False).encode()
    assert set(constraints(taken, calls=data.draw(st.booleans()))) <= {
        "grammar",
        "top_p",
        "top_k",
        "min_p",
        "penalties",
        "logit_bias",
    }


@settings(max_examples=200)
@given(values)
def test_any_body_is_taken_or_refused(body: object) -> None:
    taken = refusal_or_request(body)
    assert isinstance(taken, APIError)
    assert taken.status == 400


def refusal_or_request(body: object) -> APIError | ChatRequest:
    """A refusal that can be sent, or the request."""
    try:
        return parse(body)
    except APIError as error:
        error.response()
        return error


def test_each_parameter_that_is_used_or_forwarded_has_a_type() -> None:
    taken = {name for name, handling in PARAMETERS.items() if handling in (Handling.use, Handling.forward)}
    assert taken == set(ChatBody.model_fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", "json"),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": "b"}}),
        ("stream_options", True),
        ("tools", 5),
        ("tools", [{"type": "function"}]),
        ("tools", [{**TOOL, "function": {"name": "add", "parameters": {"maximum": math.nan}}}]),
        ("tool_choice", "always"),
        ("tool_choice", {"type": "function"}),
        ("logit_bias", {"5": math.nan}),
        ("logit_bias", [5]),
        ("messages", "hi"),
        ("messages", ["hi"]),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}]),
        ("messages", [{"role": "user", "content": [5]}]),
        ("messages", [{"content": "hi"}]),
        ("messages", [{"role": "assistant", "tool_calls": [5]}]),
        ("model", "agent@²"),
        ("model", "agent@" + "9" * 300),
        ("model", "agent@-1"),
        ("model", ["agent"]),
        ("max_tokens", 10**300),
        ("temperature", 10**400),
        ("stream", 1),
        ("n", True),
        ("stop", [5]),
        ("stop_token_ids", ["5"]),
        ("seed", 2**64),
        ("chat_template_kwargs", [1]),
        ("top_logprobs", -1),
        ("reasoning_effort", 5),
        ("parallel_tool_calls", "yes"),
        ("\ud83d", 5),
    ],
    ids=lambda part: ascii(part)[:30],
)
def test_a_wrong_value_is_answered_with_its_name(server: TrainerServer, name: str, value: object) -> None:
    body = {"model": "agent", "messages": MESSAGES, name: value}
    answer = post(server, json.dumps(body))
    assert answer.status_code == (404 if name == "model" and isinstance(value, str) else 400), answer.text
    assert answer.json()["error"]["param"] == name.encode(errors="backslashreplace").decode()


@pytest.mark.parametrize("raw", ["[" * 50_000, '{"model": "agent", "messages": ' + "[" * 500 + "]" * 500 + "}", "5"])
def test_a_body_that_cannot_be_read_is_answered_with_400(server: TrainerServer, raw: str) -> None:
    assert post(server, raw).status_code == 400


def post(server: TrainerServer, raw: str) -> httpx.Response:
    with server.http() as http:
        return http.post("/v1/chat/completions", content=raw, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize(("asked", "used"), [(0, 0.0), (1e-9, 0.01), (0.009, 0.01), (0.01, 0.01), (0.7, 0.7)])
def test_temperatures_that_vllm_raises_are_raised_here(asked: float, used: float) -> None:
    """Whoever asks: the request, a header or a policy."""
    assert MIN_TEMPERATURE == 0.01  # vLLM's _MAX_TEMP
    body: dict[str, Any] = {"model": "m", "messages": MESSAGES}
    for chat in (
        parse({**body, "temperature": asked}),
        parse(body).override(temperature=asked, hint=None),
    ):
        assert chat.sampling.temperature == engine_request(chat, "m@1")["temperature"] == used


def image(value: object, key: str = "image_url") -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, {"type": key, key: value}]}]


@pytest.mark.parametrize(
    "messages",
    [
        image({"url": "http://169.254.169.254/latest/meta-data"}),
        image("https://evil.example/x.png"),
        image({"url": "file:///etc/passwd"}),
        image({"url": " HTTP://evil.example"}),
        image({"url": "http://good.example@evil.example/x"}),
        image({"url": "http://[good.example"}),
        image({"url": "http://169.254.169.254\\@good.example/x"}),  # urlsplit and urllib3 read other hosts in it
        image({"url": "http://user:word@good.example/x"}),
        image({"url": "http://good.example\t/x"}),
        image({"url": "http://good.exámple/x"}),
        image({"url": 5}),
        image({"url": "http://evil.example/x.mp4"}, "video_url"),
        image("ftp://good.example/x.wav", "audio_url"),
        [{"role": "tool", "content": [{"image_url": "http://evil.example"}]}],
    ],
)
def test_the_engine_fetches_nothing_that_was_not_allowed(messages: list[dict[str, Any]]) -> None:
    for domains in ((), ("good.example",)):
        with pytest.raises(APIError, match="--allowed-media-domain") as refused:
            parse({"model": "m", "messages": messages}, media_domains=domains)
        assert (refused.value.status, refused.value.code, refused.value.param) == (400, "media_refused", "messages")


@pytest.mark.parametrize("address", ["data:image/png;base64,AAAA", "https://good.example/x.png"])
def test_media_in_the_request_or_from_an_allowed_domain_pass(address: str) -> None:
    body = {"model": "m", "messages": image({"url": address})}
    assert address in json.dumps(parse(body, media_domains=("good.example",)).body)
