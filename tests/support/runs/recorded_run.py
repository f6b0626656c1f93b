"""A recorded run with real answers of the gateway, tools, a failed call, and a tool call that a client wrote."""

from __future__ import annotations

from typing import Any

import httpx

from art_langgraph import Scenario, Trajectory
from art_langgraph.trajectory import CompletionCall

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in (("weather", {"city": {"type": "string"}}), ("add", {"a": {"type": "integer"}}))
]
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "say hello"}]


def recorded_run(http: httpx.Client) -> Trajectory:
    """A run of two answers of the policy `agent`, the second of which continues the first one's conversation."""
    first = _call(http, ASKED)
    wanted = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    turn = [
        *ASKED, first.message or {}, {"role": "user", "content": "say more"},
        {"role": "assistant", "content": None, "tool_calls": [wanted]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]  # fmt: skip
    failed = CompletionCall(id=None, model="agent", messages=ASKED, error="it broke", started=6.0)
    return Trajectory(
        id="tr-1", scenario=Scenario(id="hello", input="say hello"), reward=0.5, graph_id="chat", started=5.0,
        completions=[first, _call(http, turn), failed], metrics={"right": 1.0},
    )  # fmt: skip


def _call(http: httpx.Client, messages: list[dict[str, Any]]) -> CompletionCall:
    body = {"model": "agent", "messages": messages, "tools": TOOLS, "max_tokens": 12}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    message = {name: value for name, value in answer.json()["choices"][0]["message"].items() if value is not None}
    return CompletionCall(
        id=answer.json()["id"], model="agent", version=0, messages=messages, message=message, started=5.0
    )
