"""Answers that look like tool calls which the parser did not take, and answers that only look like JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.homes.ledger_rows import row
from trainer_server.common.run_tree import CallItem, tree
from trainer_server.common.text_call import text_call

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("get_weather", "search")]
CALL = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"```json\n{CALL}\n```",
        f"I look at the weather.\n```\n{CALL}\n```\nThen I answer.",
        f"<tools>\n{CALL}\n</tools>",
        f'[{{"type": "function", "function": {CALL}}}]',
        '{"name": "get_weather", "parameters": {}}',
        '{ "arguments": {"city": "Oslo"}, "name": "get_weather" }',
        f'{{"name": "Oslo"}} is the city. {CALL}',
    ],
)
def test_json_that_names_a_tool_and_its_arguments_is_a_call(text: str) -> None:
    assert text_call({"content": text}, {"tools": TOOLS}) == "get_weather"


@pytest.mark.parametrize(
    "text",
    [
        "It is cold in Oslo.",
        '{"name": "Oslo", "arguments": {"city": "Oslo"}}',
        '{"name": "get_weather", "description": "Weather of a city"}',
        '{"name": "get_weather", "arguments": "none"}',
        '{"name": ["get_weather"], "arguments": {}}',
        '{"city": "Oslo", "weather": "cold"}',
        '{"name": "get_weather", "arguments": {"city": "Os',
        '{"name":' * 2000,
        "",
    ],
)
def test_other_answers_are_none(text: str) -> None:
    assert text_call({"content": text}, {"tools": TOOLS}) is None


def test_the_tools_of_other_apis_have_their_names_outside() -> None:
    for tool in ({"type": "function", "name": "get_weather"}, {"name": "get_weather", "input_schema": {}}):
        assert text_call({"content": CALL}, {"tools": [tool]}) == "get_weather"


@pytest.mark.parametrize(
    ("message", "request_"),
    [
        ({"content": CALL}, {}),
        ({"content": CALL}, {"tools": None}),
        ({"content": CALL}, {"tools": ["get_weather", {"function": None}, {"function": {}}]}),
        ({"content": CALL}, {"tools": TOOLS, "tool_choice": "none"}),
        ({"content": CALL, "tool_calls": [{"function": {"name": "search", "arguments": "{}"}}]}, {"tools": TOOLS}),
        ({"content": [{"type": "text", "text": CALL}]}, {"tools": TOOLS}),
        (None, {"tools": TOOLS}),
    ],
)
def test_only_the_text_of_an_answer_that_could_call_counts(
    message: dict[str, Any] | None, request_: dict[str, Any]
) -> None:
    assert text_call(message, request_) is None


def test_a_run_says_it_of_the_call() -> None:
    answers = {"a": {"content": CALL}, "b": {"content": json.dumps({"name": "Oslo"})}}
    rows = [
        row(one, 1.0).model_copy(update={"message": said, "request": {"tools": TOOLS}}) for one, said in answers.items()
    ]
    items = [item for item in tree(None, rows) if isinstance(item, CallItem)]
    assert [item.text_call for item in items] == [
        "this looks like a call of get_weather that the parser did not take",
        None,
    ]
