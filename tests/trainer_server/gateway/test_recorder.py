"""Rows of the ledger, as they are made from answers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.support.chat_requests import parse
from tests.support.homes.ledger_rows import row
from trainer_server.common.jsonl import to_json
from trainer_server.gateway.answer import Answer
from trainer_server.gateway.recorder import Identity, Recorder
from trainer_server.gateway.resolver import Source
from trainer_server.gateway.sampler import Attempt
from trainer_server.gateway.splice.splicer import Prompt
from trainer_server.wire import Completion, CompletionStatus


def recorded(body: dict[str, Any], status: CompletionStatus) -> Completion:
    nothing: Any = None
    base: Any = row("base").model_copy(update={"name": "base"})
    chat = parse({"model": "agent", **body})
    recorder, source = Recorder(Identity("srv", base, "t"), nothing), Source(None, None, None)
    (completion,) = recorder.rows(chat, source, Attempt(Prompt(None), 9), [Answer()], status)
    return completion


def test_of_a_refused_request_the_beginnings_of_its_texts_are_recorded() -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a" * 10**6}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "b" * 10**6},
        *[{"role": "user", "content": "c" * 1990}] * 1000,
    ]
    refused = recorded({"messages": messages}, CompletionStatus.refused)
    assert len(to_json(refused)) < 500_000
    first, call_again, result, *_, last = refused.request["messages"]
    assert first["content"][0]["text"] == "a" * 16384 + " [… 983,616 more characters]"
    assert (call_again["tool_calls"], result["tool_call_id"]) == ([call], "call-1")
    assert last == {"role": "user", "content": "c" * 40 + " [… 1,950 more characters]"}
    for status in (CompletionStatus.complete, CompletionStatus.failed, CompletionStatus.aborted):
        assert recorded({"messages": messages}, status).request["messages"] == messages


async def test_the_first_answer_of_a_policy_that_is_a_tool_call_in_text_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Shelf:
        async def add(self, *completions: Completion) -> None:
            pass

    def answer(content: str, policy: str) -> Completion:
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
        message = {"role": "assistant", "content": content}
        return row("one").model_copy(update={"policy": policy, "message": message, "request": {"tools": tools}})

    call = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
    base: Any = None
    recorder = Recorder(Identity("srv", base, "t"), Shelf())
    with caplog.at_level(logging.WARNING, "trainer_server"):
        await recorder.add([answer("It is cold.", "agent")])
        assert caplog.messages == []
        for policy in ("agent", "agent", "other"):
            await recorder.add([answer(f"```json\n{call}\n```", policy)])
    assert caplog.messages == [
        f"an answer of {policy}: this looks like a call of get_weather that the parser did not take. "
        "`serve --tool-call-parser json_calls` takes such calls: see docs/models/parsers.md"
        for policy in ("agent", "other")
    ]
