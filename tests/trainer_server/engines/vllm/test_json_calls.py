"""Calls that a model writes as JSON in its text, whole and as a stream cuts them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engines.plugins import engine_plugin
from trainer_server.common.text_call import text_call

plugin = engine_plugin("art_json_calls")
TOOLS = ("get_weather", "search")
CALL = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
TAKEN = ("get_weather", '{"city": "Oslo"}')

PIECES = st.sampled_from(
    [
        *('{"name": "', "get_weather", "search", "Oslo", '", "arguments": ', '", "parameters": ', '", "name": "', CALL),
        *("<tool_call>", "</tool_call>", "```", "json", "\n", " ", "{", "}", "{}", "[", ",", '"', "\\", '{"a": "}{"}'),
        *("null", "1e999", "NaN", '{"city": {"b": [1, {"c": "```"}]}}', '"\\ud83d\\ude00"', '"\\ud800"', "It is cold."),
    ]
)  # fmt: skip
ANSWERS = st.lists(PIECES | st.text('{}"`<>:,\\tnl a', max_size=4), max_size=12).map("".join)


def read(*pieces: str) -> tuple[str, list[tuple[str, str]]]:
    reader = plugin.CallReader(TOOLS)
    parts = [*(reader.feed(piece) for piece in pieces), reader.feed("", last=True)]
    return "".join(text for text, _ in parts), [call for _, calls in parts for call in calls]


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        (CALL, "", [TAKEN]),
        (f"```json\n{CALL}\n```", "", [TAKEN]),
        (f"```\n{CALL}```\n", "", [TAKEN]),
        (f"<tool_call>\n{CALL}\n</tool_call>", "", [TAKEN]),
        (f"{CALL}\n</tool_call>", "", [TAKEN]),
        (f"<tool_call>{CALL}", "", [TAKEN]),
        ('{"name": "search", "parameters": {}}', "", [("search", "{}")]),
        ('{ "arguments": {"q": 1.0}, "name": "search" }', "", [("search", '{"q": 1.0}')]),
        ('{"name": "search", "id": 7, "arguments": {}}', "", [("search", "{}")]),
        (f"{CALL}\n{CALL}", "", [TAKEN, TAKEN]),
        (f"```json\n{CALL}\n{CALL}\n```", "", [TAKEN, TAKEN]),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "", [TAKEN, TAKEN]),
        (f"I look.\n{CALL}\nThen I answer.\n", "I look.\n\nThen I answer.", [TAKEN]),
        (f"{CALL}\n```python\nprint()\n```", "```python\nprint()\n```", [TAKEN]),
        (
            '{"name": "search", "arguments": {"q": "a } { \\" ```", "in": [{"é": {}}]}}',
            "",
            [("search", '{"q": "a } { \\" ```", "in": [{"é": {}}]}')],
        ),
        (f"[{CALL}, {CALL}]", "[, ]", [TAKEN, TAKEN]),
        (f'{{"city": "Oslo"}} {CALL}', '{"city": "Oslo"}', [TAKEN]),
    ],
)
def test_calls_are_taken_out_of_the_text(answer: str, text: str, calls: list[tuple[str, str]]) -> None:
    assert read(answer) == (text, calls)
    assert read(*answer) == (text, calls)


@pytest.mark.parametrize(
    "answer",
    [
        "It is cold in Oslo.\n",
        '{"name": "Oslo", "arguments": {"city": "Oslo"}}',
        '```json\n{"name": "get_weather"}\n```',
        '{"name": "get_weather", "arguments": "none"}',
        '{"name": ["get_weather"], "arguments": {}}',
        '{"name": "get_weather", "arguments": {"city": "Os',
        '{"name": "get_weather", "arguments": {"in": {"name": "search", "arguments": {}}',
        '{"name": "get_weather", "arguments": {"city": NaN}}',
        '{"name": "get_weather", "arguments": {"city": 1e999}}',
        '{"name": "get_weather", "arguments": {"city": "\\ud800"}}',
        '{"name": "Oslo", "name": "get_weather", "arguments": {}}',
        "if (a < b) { return `c`; }",
        "```",
        "<tool_call>\nget_weather\n</tool_call>",
        "  ",
        "",
    ],
)
def test_everything_else_is_text(answer: str) -> None:
    assert read(answer) == read(*answer) == (answer, [])


def test_deep_json_is_text() -> None:
    for answer in ('{"name":' * 300, '{"name": "search", "arguments": ' + '{"a": ' * 2000 + "1" + "}" * 2001):
        assert read(answer) == (answer, [])


@given(ANSWERS, st.data())
def test_how_an_answer_is_cut_changes_nothing(answer: str, data: st.DataObject) -> None:
    at = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    pieces = [answer[start:end] for start, end in zip([0, *at], [*at, len(answer)], strict=True)]
    whole = read(answer)
    assert read(*pieces) == read(*answer) == whole
    text, calls = whole
    assert calls or text == answer
    assert all(name in TOOLS and isinstance(json.loads(arguments), dict) for name, arguments in calls)


@pytest.mark.parametrize(
    ("answer", "held"),
    [
        ("It is cold. ", " "),
        ("Look: {", " {"),
        ('{"na', '{"na'),
        ('{"temp', ""),
        ('{"name": "get_weather", "ar', '{"name": "get_weather", "ar'),
        ('{"name": "Oslo"', ""),
        ('{"name": "get_weather" and', ""),
        ('{"name": "get_weather", "arguments": [', ""),
        ("``", "``"),
        ("```json\n", "```json\n"),
        ("```python\nprint", ""),
        ("`x", ""),
        ("<tool_", "<tool_"),
        ("<table", ""),
        ("<tool_call>\nget", ""),
    ],
)
def test_text_is_held_back_only_where_it_may_become_a_call(answer: str, held: str) -> None:
    text, calls = plugin.CallReader(TOOLS).feed(answer)
    assert (text, calls) == (answer.removesuffix(held), [])


def test_a_call_is_given_when_it_is_complete() -> None:
    reader = plugin.CallReader(TOOLS)
    assert reader.feed(f"```json\n{CALL[:-1]}") == ("", [])
    assert reader.feed("}") == ("", [TAKEN])
    assert reader.feed("\n``") == ("", [])
    assert reader.feed("`\nSo.") == ("So.", [])


@given(ANSWERS)
def test_it_takes_what_looks_like_a_call_that_a_parser_did_not_take(answer: str) -> None:
    request = {"tools": [{"type": "function", "function": {"name": name}} for name in TOOLS]}
    if plugin.CallReader(TOOLS).feed(answer, last=True)[1] == []:
        name = text_call({"content": answer}, request)
        assert name is None, answer
