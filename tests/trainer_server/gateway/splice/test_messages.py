"""A message and what a client makes of it have one canonical form; other messages have another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import convert_to_messages
from langchain_openai.chat_models.base import _convert_dict_to_message, _convert_message_to_dict

from trainer_server.gateway.splice.turns import canonical, digests, holds, only_text, thoughts, visible_texts


def answer(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def call(arguments: Any, **fields: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}, **fields}


@pytest.mark.parametrize(
    ("sent", "returned"),
    [
        (answer("hi", refusal=None, annotations=None, tool_calls=[]), answer("hi")),
        (answer("hi"), answer([{"type": "text", "text": "hi"}])),
        (answer("hi"), answer("hi", name="researcher")),
        (answer("hi", reasoning="hm"), answer("hi")),
        (answer("hi", reasoning="hm"), answer("hi", reasoning_content="hm")),
        (answer(None, tool_calls=[call('{"b":1,"a":"é"}')]), answer("", tool_calls=[call('{"a": "\\u00e9", "b": 1}')])),
        (answer(None, tool_calls=[call("{}")]), answer(tool_calls=[call("")])),
        (answer(None, tool_calls=[call('{"a": 1}')]), answer(tool_calls=[call({"a": 1}, index=0)])),
        (answer(None, tool_calls=[call('{"a": ')]), answer(tool_calls=[call('{"a": ')])),
    ],
)
def test_what_a_client_sends_back_is_the_same_message(sent: dict[str, Any], returned: dict[str, Any]) -> None:
    assert canonical(sent) == canonical(returned)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (answer("hi"), answer("hi ")),
        (answer("hi"), {"role": "user", "content": "hi"}),
        (answer(tool_calls=[call('{"a": 1}')]), answer(tool_calls=[call('{"a": 1.0}')])),
        (answer(tool_calls=[call('{"a": 1}')]), answer(tool_calls=[call('{"a": true}')])),
        (answer(tool_calls=[call("{}")]), answer(tool_calls=[{**call("{}"), "id": "d"}])),
        (answer(tool_calls=[call('{"a": ')]), answer(tool_calls=[call(json.dumps('{"a": '))])),
        ({"role": "user", "content": "hi", "name": "a"}, {"role": "user", "content": "hi", "name": "b"}),
        (answer([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), answer("ab")),
    ],
)
def test_another_message_has_another_form(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(one) != canonical(other)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(), st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=3), st.booleans())
def test_langchain_sends_every_answer_back_as_the_same_message(
    content: str, calls: list[dict[str, Any]], spaced: bool
) -> None:
    separators = None if spaced else (",", ":")
    written = [{**call(json.dumps(one, separators=separators)), "id": str(at)} for at, one in enumerate(calls)]
    sent = answer(content or None, tool_calls=written)
    returned = _convert_message_to_dict(_convert_dict_to_message(sent))
    assert canonical(returned) == canonical(sent)
    (kept,) = convert_to_messages([_convert_dict_to_message(sent).model_dump()])  # through a checkpoint
    assert canonical(_convert_message_to_dict(kept)) == canonical(sent)


def test_digests_are_of_beginnings_in_a_scope() -> None:
    messages = [{"role": "user", "content": "a"}, answer("b"), {"role": "user", "content": "c"}]
    assert digests(messages[:2], "x") == digests(messages, "x")[:2]
    assert not set(digests(messages, "x")) & set(digests(messages, "y"))
    assert len(set(digests(messages, ""))) == 3


def test_thoughts_and_what_is_said() -> None:
    thinking = answer("<think>hm\n</think>\n\nhi ", reasoning=" so ", tool_calls=[call("{}")])
    assert thoughts(thinking) == ["so", "hm"]
    assert list(visible_texts(thinking)) == ["hi", "f"]
    assert list(visible_texts({"role": "user", "content": [{"type": "text", "text": "a</think>b"}]})) == ["a</think>b"]
    assert thoughts(answer("hi")) == thoughts(answer()) == []


def test_texts_are_found_anywhere_in_a_message() -> None:
    assert holds(answer(tool_calls=[call('{"a": ["\\u003c/s>"]}')]), "</s>")
    assert holds(answer("x</s>"), "</s>")
    assert not holds(answer("x", tool_calls=[call("{}")]), "</s>")


def test_media_are_no_text() -> None:
    assert only_text([answer(["a", {"type": "text", "text": "b"}])])
    assert not only_text(
        [answer(), {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    )
