"""Arguments of tool calls mean the same to all that read them: splicer, demonstrations, importers and gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from art_langgraph.exports.answers import parsed_arguments
from art_langgraph.traces.messages import openai_messages
from tests.support.chat_requests import parse
from trainer_server.gateway.messages.answer import tool_use
from trainer_server.gateway.sampler import engine_request
from trainer_server.gateway.splice.turns import canonical
from trainer_server.wire import Conversation
from trainer_server.wire.tool_arguments import arguments_input, arguments_object, arguments_text, complete_calls

DEEP = "[" * 100_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
FORMS: list[tuple[Any, dict[str, Any] | None]] = [
    ("", {}),
    (" \n", {}),
    (None, {}),
    ({}, {}),
    ("{}", {}),
    ({"a": 1}, {"a": 1}),
    ('{"a": 1}', {"a": 1}),
    ('{"a":1}', {"a": 1}),
    ('"soon"', None),
    ("null", None),
    ('{"x": NaN}', None),
    ('{"x": [-1e999]}', None),
    ("[1]", None),
    ('{"text": "He said "hi""}', None),
    (DEEP, None),
]


def conversation(arguments: Any) -> list[dict[str, Any]]:
    function = {"name": "write", "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    return [
        {"role": "user", "content": "write"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]


@pytest.mark.parametrize(("arguments", "read"), FORMS)
def test_one_reading(arguments: Any, read: dict[str, Any] | None) -> None:
    messages = conversation(arguments)
    text = arguments if read is None else arguments_text(arguments)
    assert arguments_object(arguments) == read
    assert read is None or json.loads(text) == read
    asked = engine_request(parse({"model": "m", "messages": messages}), "m")
    for reader in (asked["messages"], openai_messages(messages)):
        (call,) = reader[1]["tool_calls"]
        assert call["function"]["arguments"] == text
    if read is None:
        with pytest.raises(ValidationError, match="arguments of write must be a JSON object written as a text"):
            Conversation(messages=messages)
        assert parsed_arguments(messages[1]) == messages[1]
        assert tool_use(messages[1]["tool_calls"][0])["type"] == "text"
        assert list(arguments_input(arguments)) == ["input"]
    else:
        assert Conversation(messages=messages).messages == asked["messages"]
        assert parsed_arguments(messages[1])["tool_calls"][0]["function"]["arguments"] == read
        assert tool_use(messages[1]["tool_calls"][0])["input"] == read
        assert canonical(messages[1]) == canonical(conversation(read)[1]) == canonical(conversation(text)[1])
        assert arguments_input(arguments) == read
    assert messages == conversation(arguments), "what was given is not changed"


def test_a_text_that_is_no_json_is_not_the_text_that_it_looks_like() -> None:
    assert canonical(conversation("soon")[1]) != canonical(conversation('"soon"')[1])


@given(JSON)
def test_the_text_reads_as_what_it_was_made_of(value: Any) -> None:
    for form in (value, json.dumps(value)):
        assert arguments_object(arguments_text(form)) == arguments_object(form)
        assert arguments_text(arguments_text(form)) == arguments_text(form)


def test_what_engines_insist_on_is_filled_in() -> None:
    bare = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function": {"name": "write"}}]}]
    (call,) = complete_calls(bare)[1]["tool_calls"]
    assert call == {"id": "call_1_0", "type": "function", "function": {"name": "write", "arguments": "{}"}}
    whole = conversation('{"a": 1}')
    assert all(map(lambda one, other: one is other, complete_calls(whole), whole))
