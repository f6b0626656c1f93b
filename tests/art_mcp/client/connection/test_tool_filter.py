"""One tool that cannot be read does not cost the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from art_mcp import MCPError, connect, read_catalog
from art_mcp.client.connection.sdk import MAJOR
from art_mcp.client.connection.tool_filter import MAX_DEPTH, unreadable
from tests.support.mcp.commands import ODD
from tests.support.mcp.unreadable import AND, READABLE, UNENDING, crowd, laughs, nested

GOOD = {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"enum": ["a", "b"]}}}}


def written(path: Path, *tools: Any) -> list[str]:
    """The command of a server with these tools: their JSON, or objects."""
    listed = ",".join(tool if isinstance(tool, str) else json.dumps(tool) for tool in tools)
    (path / "tools.json").write_text(f"[{listed}]")
    return [*ODD, "written", str(path / "tools.json")]


@pytest.mark.parametrize(
    ("tool", "name", "why"),
    [
        (f'{{"name":"bad","inputSchema":{nested(10_000)}}}', "bad", "inputSchema is nested more than 100 levels deep"),
        (f'{{"name":"bad","inputSchema":{nested(60)}}}', "bad", "inputSchema is nested more than 100 levels deep"),
        ({"name": "bad", "inputSchema": laughs(40)}, "bad", "inputSchema "),
        ({"name": "bad", "inputSchema": 7}, "bad", "it breaks the protocol: inputSchema: "),
        ({"name": "bad"}, "bad", "it breaks the protocol: inputSchema: Field required"),
        ({"inputSchema": {"type": "object"}}, "number 0 (counted from 0)", "it breaks the protocol: name: Field"),
        (7, "number 0 (counted from 0)", "it breaks the protocol: "),
    ],
    ids=["deeper than any parser reads", "deep", "a billion", "number", "no schema", "no name", "no tool"],
)  # fmt: skip
async def test_a_tool_that_cannot_be_read_is_named_and_the_others_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tool: Any, name: str, why: str
) -> None:
    async with connect(written(tmp_path, tool, GOOD)) as server:
        assert [each.name for each in await server.tools()] == ["echo"]
        assert list(server.left_out) == [name]
        assert server.left_out[name].startswith(why)
        assert f"the tool {name} of odd is left out: {why}" in caplog.text
        assert (await server.call("echo", {"text": "b"})).text == "b"
        assert (await read_catalog(server)).left_out == server.left_out


@pytest.mark.skipif(MAJOR == 1, reason="SDK 1 takes a schema without a type")
async def test_a_schema_without_a_type_is_named_with_its_place(tmp_path: Path) -> None:
    bad = {"name": "bad", "inputSchema": {"properties": {"text": {"type": "string"}}}}
    async with connect(written(tmp_path, GOOD, bad)) as server:
        assert [tool.name for tool in await server.tools()] == ["echo"]
        assert server.left_out == {"bad": "it breaks the protocol: inputSchema.type: Field required"}
    async with connect(written(tmp_path, bad)) as server:
        with pytest.raises(MCPError, match=r"no tool of odd can be read: bad: .*inputSchema\.type: Field required"):
            await server.tools()


async def test_a_tool_that_langchain_cannot_offer_costs_no_other(tmp_path: Path) -> None:
    dangling = {"name": "bad", "inputSchema": READABLE["nothing"]}
    async with connect(written(tmp_path, dangling, GOOD)) as server:
        assert "echo" in [tool.name for tool in await server.tools()]


async def test_an_answer_that_breaks_the_protocol_is_named_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text("7")
    async with connect([*ODD, "written", str(tmp_path / "tools.json")]) as server:
        with pytest.raises(MCPError, match=r"the answer to tools/list breaks the protocol: tools: "):
            await server.tools()


async def test_an_answer_that_cannot_be_parsed_is_a_failure_and_no_wait(tmp_path: Path) -> None:
    """A request to which nobody can read the answer would end at its time limit only."""
    async with connect([*ODD, "deep"], timeout=60) as server:
        for tool in ("echo", "count"):
            result = await server.call(tool, {})
            assert result.text == "odd: the answer cannot be read: it is nested more than 120 levels deep"
            assert result.failure == "protocol"


def test_references_count_as_what_they_lead_to() -> None:
    for schema in (AND, laughs(3), crowd(4), *READABLE.values()):
        assert unreadable({"inputSchema": schema, "outputSchema": schema}) is None
    assert "more than 100,000 values" in (unreadable({"inputSchema": laughs(15)}) or "")
    assert "more than 100,000 values" in (unreadable({"inputSchema": crowd(12)}) or "")
    assert unreadable({"inputSchema": {}, "outputSchema": UNENDING["itself"]}) is None
    assert unreadable({"inputSchema": json.loads(nested(MAX_DEPTH // 2))}) is not None
    assert unreadable({"inputSchema": json.loads(nested(MAX_DEPTH // 2 - 1))}) is None
    defined = {"$defs": {"deep": json.loads(nested(MAX_DEPTH))}}
    assert "nested" in (unreadable({"inputSchema": defined}) or "")


@pytest.mark.parametrize(("key", "step"), [("allOf", "allOf/{}"), ("a/b", "a~1b/{}"), ("a~ b", "a~0%20b/000{}")])
def test_references_are_followed_however_they_are_written(key: str, step: str) -> None:
    levels: list[Any] = [{"type": "string"}]
    for level in range(24, 0, -1):
        reference = {"$ref": f"#/{step.format(level)}"}
        levels.insert(0, {"properties": {"a": reference, "b": reference}})
    assert "more than 100,000 values" in (unreadable({"inputSchema": {key: levels}}) or "")
    assert unreadable({"inputSchema": {key: levels[-4:]}}) is None
