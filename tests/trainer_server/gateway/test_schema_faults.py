"""Schemas of which engines make no grammar: asked again without what nobody asked for, else the tool is named."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.servers.trainer_server import TrainerServer, row
from trainer_server.gateway.schema_faults import schema_fault

GOOD = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({**GOOD, "required": None}, "`tools.write.parameters.required` must be a list of names, not null"),
    ({"type": "object", "properties": None}, "`tools.write.parameters.properties` must be an object, not null"),
    (
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^\\p{L}+$"}}},
        "`tools.write.parameters.properties.a.pattern` has '\\\\p', which a grammar cannot have: leave the pattern "
        "out, or write it without",
    ),
    (
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/Gone"}}},
        "`tools.write.parameters.properties.a.$ref` names '#/$defs/Gone', which the schema does not have",
    ),
]


def tool(parameters: Any, name: str = "write", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


@pytest.mark.parametrize(("schema", "problem"), FAULTS)
def test_the_tool_and_its_field_are_named(schema: dict[str, Any], problem: str) -> None:
    tools = [tool(GOOD, "read"), tool(schema)]
    assert schema_fault({"tools": tools, "tool_choice": "required"}) == ("tools", problem)
    assert schema_fault({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "read"}}}) is None
    assert schema_fault({"tools": tools}) is None, "no schema is part of the grammar"
    assert schema_fault({"tools": [tool(schema, strict=True)]}) == ("tools", problem)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": None}}, "properties.a"),
        ({"properties": {"a": {"enum": []}}}, "properties.a.enum"),
        ({"properties": {"a": {"type": "any"}}}, "properties.a.type"),
        ({"type": None}, "type"),
        ({"properties": {"a": {"anyOf": None}}}, "properties.a.anyOf"),
        ({"properties": {"a": {"type": "array", "items": None}}}, "properties.a.items"),
        ({"properties": {"a": {"anyOf": [{}, {"minLength": "3"}]}}}, "properties.a.anyOf.1.minLength"),
        ({"properties": {}, "additionalProperties": None}, "additionalProperties"),
        ({"properties": {"a": {"pattern": None}}}, "properties.a.pattern"),
        ({"properties": {"a": {"pattern": "(a"}}}, "properties.a.pattern"),
        ({"properties": {"a": {"pattern": "\\bfoo"}}}, "properties.a.pattern"),
        ({"properties": {"a": {"pattern": "(?<year>a)"}}}, "properties.a.pattern"),
        ({"$defs": {"B": {"$ref": "https://example.org/b.json"}}}, "$defs.B.$ref"),
        ({"required": "a"}, "required"),
    ],
)
def test_other_faults(schema: dict[str, Any], place: str) -> None:
    found = schema_fault({"tools": [tool(schema)], "tool_choice": "required"})
    assert found is not None
    assert found[1].startswith(f"`tools.write.parameters.{place}` ")
    response = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = schema_fault({"response_format": response})
    assert found is not None
    assert found[0] == "response_format"


@pytest.mark.parametrize(
    "schema",
    [
        GOOD,
        {},
        True,
        {"$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/A"}}}}, "$ref": "#/$defs/A"},
        {"properties": {"required": {"type": ["string", "null"], "default": None, "const": None}}},
        {"properties": {"a~/b": {}, "b": {"$ref": "#/properties/a~0~1b"}, "c": {"items": True, "required": True}}},
        {"properties": {"a": {"pattern": "^[\\u4e00-\\u9fa5]+\\d{2,3}$", "format": "int64", "description": None}}},
    ],
)
def test_what_engines_take_is_no_fault(schema: Any) -> None:
    assert schema_fault({"tools": [tool(schema)], "tool_choice": "required"}) is None


def ask(server: TrainerServer, **body: Any) -> httpx.Response:
    messages = [{"role": "user", "content": '{"a": "x"}'}]
    with server.http() as http:
        return http.post(
            "/v1/chat/completions", json={"model": "agent", "messages": messages, "max_tokens": 50, **body}
        )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("schema", [schema for schema, _ in FAULTS])
def test_a_forced_call_is_answered_though_its_tool_cannot_be_strict(
    server: TrainerServer, schema: dict[str, Any], late: bool, stream: bool
) -> None:
    server.engine["late"] = late
    try:
        asked = len(server.engine["requests"])
        for choice in ("required", {"type": "function", "function": {"name": "write"}}):
            answer = ask(server, tools=[tool(schema)], tool_choice=choice, stream=stream)
            assert answer.status_code == 200, answer.text
            found = row(server, answer.headers["X-ART-Completion"])
            assert found["message"]["tool_calls"][0]["function"] == {"name": "write", "arguments": '{"a": "x"}'}
            assert found["constrained"] == ["grammar"]
        strict = ["strict" in one["tools"][0]["function"] for one in server.engine["requests"][asked:]]
        assert strict == [True, False] * 2
    finally:
        server.engine["late"] = False


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("schema", "problem"), FAULTS)
def test_a_client_that_wants_it_strict_hears_which_tool_it_is(
    server: TrainerServer, schema: dict[str, Any], problem: str, stream: bool
) -> None:
    tools = [tool(GOOD, "read"), tool(schema, strict=True)]
    for choice in ("required", "auto"):
        answer = ask(server, tools=tools, tool_choice=choice, stream=stream)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["message"], error["param"]) == (f"Invalid grammar specification: {problem}", "tools")
