"""Scenarios from schemas alone: drafted, executed on a real server, checked, balanced, split."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import rollout
from art_mcp import (
    Cassette,
    Catalog,
    MCPScenario,
    ScenarioSet,
    Server,
    connect,
    demonstration,
    generate_scenarios,
    load_tables,
    read_catalog,
    verify,
)
from art_mcp.scenarios.execute import execute
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.specialization.verify import solved
from tests.support.mcp.commands import SHOP
from trainer_server.wire import ConfigError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cassette(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tape") / "shop.jsonl"


@pytest.fixture(scope="module")
def found(cassette: Path) -> ScenarioSet:
    """24 scenarios of the shop, and a recording of how they came about."""

    async def generate() -> ScenarioSet:
        async with connect(SHOP, cassette=Cassette(cassette, "record")) as server:
            return await generate_scenarios(server, 24, progress=False)

    return asyncio.run(generate())


def by_tools(found: ScenarioSet, *tools: str) -> list[MCPScenario]:
    return [one for one in found.scenarios if one.tools == tools]


def test_what_fails_gives_nothing_or_destroys_is_dropped_with_the_reason(found: ScenarioSet) -> None:
    assert len(found) == 24
    reasons = {one.tools[0]: (one.kind, one.reason) for one in found.dropped if one.kind != "surplus"}
    assert reasons["get_broken"][0] == "error"
    assert "out of order" in reasons["get_broken"][1]
    assert reasons["find_ghost"][0] == "empty"
    assert found.coverage["remove_item"] == 0
    (useless,) = (note for note in found.notes if note.startswith("gave nothing usable when they were tried out: "))
    assert "get_broken: call 1, get_broken: " in useless
    assert "out of order" in useless
    assert "list_items" not in useless
    assert any(note.startswith("not called, as they may change something: remove_item (") for note in found.notes)


def test_values_come_from_results_of_other_tools_and_lead_from_call_to_call(found: ScenarioSet) -> None:
    prices = by_tools(found, "get_price")
    assert {one.plan.reference[0].arguments["item_id"] for one in prices} <= {"it-77", "it-88", "it-99"}
    chained = by_tools(found, "list_items", "get_price")
    step = next(one.plan.reference[1] for one in chained if one.plan.reference[1].needs)
    assert step.arguments["item_id"] == {"$step": 0, "path": [0, "item_id"]} or step.arguments["item_id"]["path"][0] > 0


def test_facts_are_what_two_executions_agree_on(found: ScenarioSet) -> None:
    prices = {one.plan.reference[0].arguments["item_id"]: one.plan.facts for one in by_tools(found, "get_price")}
    assert prices
    assert all(facts == [{"it-77": "20", "it-88": "45", "it-99": "130"}[item]] for item, facts in prices.items())
    for one in by_tools(found, "get_clock"):
        assert one.plan.facts == []
        assert one.plan.observations


def test_every_value_is_in_the_task(found: ScenarioSet) -> None:
    for one in found.scenarios:
        for step in one.plan.reference:
            for value in step.arguments.values():
                assert isinstance(value, dict) or str(value) in one.task


def test_no_two_ask_for_the_same_and_tools_are_used_alike(found: ScenarioSet) -> None:
    asked = [json.dumps(one.metadata["mcp"]["reference"]) for one in found.scenarios]
    assert len(set(asked)) == len(asked)
    good = [found.coverage[name] for name in ("list_items", "get_price", "convert_price", "get_clock")]
    assert max(good) <= 4 * min(good)
    assert {one.plan.difficulty for one in found.scenarios} >= {1, 2, 3}


async def test_a_run_like_the_reference_is_a_success_and_worth_one_where_there_are_facts(found: ScenarioSet) -> None:
    """On another server: what was observed once must hold again."""
    timeless = [one for one in found.scenarios if "get_clock" not in one.tools]
    assert len(timeless) > 10
    async with connect(SHOP) as server:
        for one in timeless:
            messages = demonstration(one)
            asked = [call["function"] for message in messages for call in message.get("tool_calls", ())]
            calls = [(call["name"], json.loads(call["arguments"])) for call in asked]
            ran = await rollout(answering(server, calls, messages[-1]["content"]), one, verify())
            assert solved(ran), (one.task, ran.metrics, ran.tool_calls)
            assert ran.reward == pytest.approx(1.0) or not one.plan.facts


def answering(server: Server, calls: list[tuple[str, dict[str, Any]]], answer: str) -> Any:
    """A graph that makes calls and then says something."""

    async def act(state: MessagesState) -> dict[str, list[AIMessage]]:
        for tool, arguments in calls:
            await server.call(tool, arguments)
        return {"messages": [AIMessage(answer)]}

    return StateGraph(MessagesState).add_node("act", act).add_edge(START, "act").compile()


async def test_the_same_seed_gives_the_same_scenarios_offline(found: ScenarioSet, cassette: Path) -> None:
    nobody = [sys.executable, "-c", "raise SystemExit"]
    async with connect(nobody, cassette=Cassette(cassette, "replay")) as server:
        again = await generate_scenarios(server, 24, progress=False)
        assert [one.task for one in again.scenarios] == [one.task for one in found.scenarios]
        assert [one.plan.split for one in again.scenarios] == [one.plan.split for one in found.scenarios]


async def test_what_changes_the_server_is_checked_by_its_calls() -> None:
    async with connect(SHOP) as server:
        catalog = await read_catalog(server)
        note = MCPScenario.make("Note it.", Plan(reference=[Step(tool="add_note", arguments={"text": "x"})]))
        [kept], dropped = await execute(server, [note], catalog, allow_destructive=True)
    assert (kept.plan.facts, dropped) == ([], [])


async def test_a_destructive_tool_is_called_only_when_that_is_asked_for() -> None:
    async with connect(SHOP) as server:
        catalog = await read_catalog(server)
        step = Step(tool="remove_item", arguments={"item_id": "it-77"})
        remove = MCPScenario.make("Remove it.", Plan(reference=[step]))
        kept, [dropped] = await execute(server, [remove], catalog)
        assert (kept, dropped.kind) == ([], "destructive")
        assert (await server.call("list_items", {})).structured
        kept, [dropped] = await execute(server, [remove], catalog, allow_destructive=True)
        assert (kept, dropped.kind) == ([], "error")
        assert "was to be removed" in dropped.reason


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([Step(tool="nothing")], "no tool 'nothing'"),
        ([Step(tool="get_price", arguments={"item_id": {"$step": 0, "path": []}})], "does not come before"),
        (
            [Step(tool="list_items"), Step(tool="get_price", arguments={"item_id": {"$step": 0, "path": [9, "x"]}})],
            "no such value",
        ),
    ],
)
async def test_references_that_cannot_be(steps: list[Step], reason: str) -> None:
    async with connect(SHOP) as server:
        draft = MCPScenario.make("Try.", Plan(reference=steps))
        kept, [dropped] = await execute(server, [draft], await read_catalog(server))
    assert kept == []
    assert reason in dropped.reason


async def test_tables_of_the_user_come_first_and_difficulty_is_held() -> None:
    async with connect(SHOP) as server:
        found = await generate_scenarios(
            server, 6, resources={"item_id": ["it-88"]}, difficulty=(1, 1), seed=3, progress=False
        )
        assert {one.plan.difficulty for one in found.scenarios} == {1}
        assert [one.plan.reference[0].arguments for one in by_tools(found, "get_price")] == [{"item_id": "it-88"}]
        with pytest.raises(ConfigError, match="has a parameter 'colour'"):
            await generate_scenarios(server, 6, resources={"colour": ["red"]}, progress=False)


async def test_a_bare_catalog_gives_drafts_and_says_so() -> None:
    schema = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"]}
    catalog = Catalog.of_tools([{"name": "get_menu", "inputSchema": schema}])
    found = await generate_scenarios(catalog, 12, progress=False)
    assert len(found) == 12
    assert any(note.startswith("not executed") for note in found.notes)
    assert any(note.startswith("no held-out combinations") for note in found.notes)
    assert (len(found.train), list(map(len, found.held_out.values()))) == (11, [1])


def values(schema: dict[str, Any], **more: Any) -> list[Any]:
    import random

    from art_mcp.scenarios.values import Values

    whole = {"type": "object", "properties": {"x": schema}, "required": ["x"], **more}
    catalog = Catalog.of_tools([{"name": "get", "inputSchema": whole}])
    drawn = Values(catalog, {}, random.Random(0))
    return [drawn.arguments(catalog.tools[0])["x"] for _ in range(20)]


@pytest.mark.parametrize(
    ("schema", "good"),
    [
        ({"enum": ["a", "b", None]}, lambda one: one in ("a", "b")),
        ({"const": 7}, lambda one: one == 7),
        ({"type": "integer", "minimum": 3, "maximum": 5}, lambda one: one in (3, 4, 5)),
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, lambda one: one == 4),
        ({"type": "integer", "minimum": 1, "multipleOf": 5}, lambda one: one % 5 == 0 and one > 0),
        ({"type": "number", "minimum": 0, "maximum": 0.5}, lambda one: 0 <= one <= 0.5),
        ({"type": "string", "examples": ["k1", "k2"]}, lambda one: one in ("k1", "k2")),
        ({"type": "string", "description": "A code (e.g., 'AB', 'CD')"}, lambda one: one in ("AB", "CD")),
        ({"type": "string", "description": "At HH:MM"}, lambda one: len(one) == 5 and one[2] == ":"),
        ({"type": "string", "format": "date-time"}, lambda one: one.endswith("Z")),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, lambda one: isinstance(one, bool)),
        ({"type": ["null", "integer"]}, lambda one: isinstance(one, int)),
        ({"$ref": "#/$defs/colour"}, lambda one: one == "red"),
        ({"type": "array", "items": {"enum": [1, 2]}, "minItems": 2}, lambda one: set(one) <= {1, 2}),
        ({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}, lambda one: one == {"a": 1}),
    ],
)
def test_values_obey_their_schema(schema: dict[str, Any], good: Any) -> None:
    drawn = values(schema, **{"$defs": {"colour": {"enum": ["red"]}}})
    assert all(good(one) for one in drawn), drawn


def test_tables_from_files(tmp_path: Path) -> None:
    (tmp_path / "zone.txt").write_text("# zones\nOslo\n\n Rome \n")
    (tmp_path / "more.json").write_text('{"day": ["Monday"], "n": [1, 2]}')
    tables = load_tables(tmp_path / "zone.txt", f"city={tmp_path / 'zone.txt'}", tmp_path / "more.json")
    assert tables == {"zone": ["Oslo", "Rome"], "city": ["Oslo", "Rome"], "day": ["Monday"], "n": [1, 2]}
    (tmp_path / "empty.txt").write_text("")
    for wrong in ("empty.txt", "none.txt"):
        with pytest.raises(ConfigError, match=wrong[:4]):
            load_tables(tmp_path / wrong)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.txt cannot be read: it is no text"):
        load_tables(tmp_path / "binary.txt")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="no JSON"):
        load_tables(tmp_path / "bad.json")


async def test_settings_that_cannot_be_are_refused() -> None:
    catalog = Catalog.of_tools([{"name": "get", "inputSchema": {"type": "object"}}])
    for settings in ({"n": 0}, {"difficulty": (3, 2)}, {"validation": 1.0}):
        with pytest.raises(ConfigError):
            await generate_scenarios(catalog, progress=False, **settings)  # type: ignore[arg-type]
