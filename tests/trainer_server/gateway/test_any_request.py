"""Whatever a client asks the gateway, in any API: an answer, or an error of its own; and the books balance."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzzing import json_values, no_traceback, spoiled, thorough
from tests.support.servers.trainer_server import TrainerServer

HEADERS = {"Content-Type": "application/json"}
TOOL = {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CHAT = {
    "model": "agent",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "say a"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "user", "content": "say b", "name": "ann"},
    ],
    "tools": [{"type": "function", "function": TOOL}],
    "tool_choice": "none",
    "max_tokens": 20,
    "n": 1,
    "stream": False,
    "stop": ["x"],
    "logit_bias": {"5": 1.0},
    "response_format": {"type": "text"},
    "temperature": 0.5,
    "metadata": {"a": "b"},
}
RESPONSE = {
    "model": "agent",
    "instructions": "be brief",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "say a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "message", "role": "user", "content": "say b"},
    ],
    "tools": [{"type": "function", **TOOL}],
    "tool_choice": "none",
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "max_output_tokens": 20,
    "stream": False,
}
MESSAGE = {
    "model": "agent",
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "say a"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "1"}]},
        {"role": "user", "content": "say b"},
    ],
    "tools": [{"name": "add", "description": "adds", "input_schema": TOOL["parameters"]}],
    "tool_choice": {"type": "none"},
    "max_tokens": 20,
    "stop_sequences": ["x"],
    "thinking": {"type": "disabled"},
    "stream": False,
}
TEXT = {"model": "agent", "prompt": "say a", "max_tokens": 9, "logprobs": 1, "echo": False, "n": 1, "stream": False}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSE,
    "/v1/messages": MESSAGE,
    "/v1/messages/count_tokens": {name: MESSAGE[name] for name in ("model", "system", "messages", "tools")},
    "/v1/completions": TEXT,
}

names = st.sampled_from(["type", "role", "content", "text", "name", "id", "function", "input", "image_url", "url"])
others = json_values(names) | st.sampled_from(
    [
        "user",
        "assistant",
        "tool",
        "text",
        "agent@0",
        "agent@latest",
        "required",
        "json_schema",
        "data:image/png;base64,",
    ]
)


@pytest.fixture(scope="module")
def http(server: TrainerServer) -> Iterator[httpx.Client]:
    """One for all examples: a new one takes 50 ms."""
    with server.http() as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("path", REQUESTS)
@thorough(25)
@given(data=st.data())
def test_any_request_is_answered_and_recorded_once(http: httpx.Client, path: str, data: st.DataObject) -> None:
    rollout = f"r-{uuid.uuid4().hex}"
    body = data.draw(spoiled(REQUESTS[path], others))
    with no_traceback():
        answer = http.post(path, content=json.dumps(body), headers={**HEADERS, "X-ART-Rollout": rollout})
        assert answer.status_code in (200, 400, 404), (body, answer.text)
        kept = http.get(f"/api/rollouts/{rollout}")
        rows = kept.json()["completions"] if kept.status_code == 200 else []
    if answer.status_code == 200:
        streamed = answer.headers["Content-Type"].startswith("text/event-stream")
        asked = body.get("n") or 1
        assert len(rows) == (0 if path.endswith("count_tokens") else asked), body
        assert not (streamed and '"error"' in answer.text), answer.text
        assert all(row["error"] is None for row in rows)
    else:
        assert rows == []
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]


@pytest.mark.parametrize("path", REQUESTS)
def test_what_is_not_spoiled_is_answered(http: httpx.Client, path: str) -> None:
    answer = http.post(path, json=REQUESTS[path])
    assert answer.status_code == 200, answer.text
