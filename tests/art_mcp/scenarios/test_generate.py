"""Scenarios from schemas alone: drafted, executed on a real server, checked, balanced, split."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import LLM, rollout
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
from art_mcp.scenarios.generate import MOST_TIMES, SECONDS, USUAL_START, default_seconds
from art_mcp.scenarios.lines import mentions
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.scenarios.split import combination, values_of
from art_mcp.scenarios.summary import skeleton
from art_mcp.scenarios.trials import execute
from art_mcp.specialization.verify import solved
from tests.support.mcp.commands import SHOP
from tests.support.servers.judge_app import endpoint
from trainer_server.wire import ConfigError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cassette(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tape") / "shop.jsonl"


@pytest.fixture(scope="module")
def kept() -> list[MCPScenario]:
    return []


@pytest.fixture(scope="module")
def found(cassette: Path, kept: list[MCPScenario]) -> ScenarioSet:
    """120 scenarios of the shop, and a recording of how they came about."""

    async def generate() -> ScenarioSet:
        async with connect(SHOP, cassette=Cassette(cassette, "record")) as server:
            return await generate_scenarios(server, 120, progress=False, on_kept=kept.append)

    return asyncio.run(generate())


def by_tools(found: ScenarioSet, *tools: str) -> list[MCPScenario]:
    return [one for one in found.scenarios if one.tools == tools]


def test_what_fails_gives_nothing_or_destroys_is_dropped_with_the_reason(found: ScenarioSet) -> None:
    assert len(found) == 120
    reasons = {one.tools[0]: (one.kind, one.reason) for one in found.dropped}
    assert reasons["get_broken"][0] == "error"
    assert "out of order" in reasons["get_broken"][1]
    assert reasons["find_ghost"][0] == "empty"
    assert found.coverage["remove_item"] == 0
    (useless,) = (note for note in found.notes if note.startswith("gave nothing usable when they were tried out: "))
    assert "list_items" not in useless
    assert any(note.startswith("not called, as they may change something: remove_item (") for note in found.notes)


def test_every_scenario_is_told_when_it_is_kept(found: ScenarioSet, kept: list[MCPScenario]) -> None:
    assert kept == found.scenarios


def test_there_are_tasks_of_every_kind_and_the_tools_are_balanced(found: ScenarioSet) -> None:
    kinds = Counter(one.plan.kind for one in found.scenarios)
    assert set(kinds) == {"single", "pair", "chain", "follow_up", "impossible", "talk"}
    assert kinds["impossible"] + kinds["talk"] <= 0.15 * len(found)
    singles = Counter(one.tools[0] for one in found.train if one.plan.kind == "single")
    assert set(singles) == {"list_items", "get_price", "convert_price", "get_clock"}
    assert max(singles.values()) <= 2 * min(singles.values())


def test_each_of_two_requests_is_known_as_it_stands_in_the_text(found: ScenarioSet) -> None:
    pairs = [scenario for scenario in found.scenarios if scenario.plan.kind == "pair"]
    apart = [scenario for scenario in pairs if scenario.plan.requests]
    assert len(apart) > len(pairs) / 2, "chained requests alone have more calls than requests"
    for scenario in apart:
        assert len(scenario.plan.requests) == len(scenario.plan.answers) == 2
        assert all(request.casefold() in scenario.task.casefold() for request in scenario.plan.requests)


def test_values_come_from_results_of_other_tools_and_lead_from_call_to_call(found: ScenarioSet) -> None:
    prices = by_tools(found, "get_price")
    asked = {one.plan.reference[0].arguments["item_id"] for one in prices if one.plan.reply == "result"}
    assert asked == {"it-77", "it-88", "it-99"}
    chained = by_tools(found, "list_items", "get_price")
    for one in chained:
        if one.plan.kind == "chain":
            argument = one.plan.reference[1].arguments["item_id"]
            assert argument["path"][1] == "item_id"
            assert "it-" not in one.task, "it is looked up"
    assert any(name in one.task for one in chained for name in ("lamp", "chair", "shelf"))


def test_facts_are_few_and_short_and_times_are_read_off_in_the_run(found: ScenarioSet) -> None:
    for one in found.scenarios:
        assert len(one.plan.facts) <= 2
        assert all(len(fact) <= 40 for fact in one.plan.facts)
        assert not any(mentions(one.task, fact) for fact in one.plan.facts if fact != "yes"), one.task
    clock = [one.plan for one in by_tools(found, "get_clock")]
    assert all(plan.readings and not plan.facts for plan in clock if plan.kind == "single")


def test_training_has_nothing_of_what_is_held_out(found: ScenarioSet) -> None:
    assert all(len(listed) == 10 for listed in found.held_out_sets.values())
    assert list(found.held_out_sets) == ["values", "phrasings", "combinations"]
    trained = set().union(*(values_of(one.plan.reference) for one in found.train))
    for one in found.held_out_sets["values"]:
        assert not values_of(one.plan.reference) <= trained, one.task
    forms = {one.plan.phrasing for one in found.train}
    assert not {one.plan.phrasing for one in found.held_out_sets["phrasings"]} & forms
    combined = {combination(one) for one in found.train}
    for one in found.held_out_sets["combinations"]:
        assert combination(one) not in combined
        assert {(tool,) for tool in combination(one)} <= combined


def test_no_description_is_parroted_and_no_two_tasks_are_the_same(found: ScenarioSet) -> None:
    (note,) = (note for note in found.notes if note.startswith("tasks with 5 words in a row"))
    share = int(note.partition("at most ")[2].partition("%")[0])
    assert share <= 10
    assert len({one.wording for one in found.scenarios}) == len(found)
    assert len({skeleton(one) for one in found.scenarios}) > 0.8 * len(found)


async def test_a_demonstration_gets_the_whole_reward(found: ScenarioSet) -> None:
    """The law of the verifier and the demonstrations, over everything that is generated."""
    async with connect(SHOP) as server:
        for one in found.scenarios:
            if one.plan.readings:  # the recorded answer has the time of the recording
                continue
            *messages, last = demonstration(one)
            assert [message["content"] for message in messages[: len(one.messages)]] == [
                message["content"] for message in one.messages
            ]
            asked = [call["function"] for message in messages for call in message.get("tool_calls", ())]
            calls = [(call["name"], json.loads(call["arguments"])) for call in asked]
            ran = await rollout(answering(server, calls, last["content"]), one, verify())
            assert ran.reward == pytest.approx(1.0), (one.task, last, ran.metrics, ran.tool_calls)


async def test_an_answer_that_says_nothing_is_no_success(found: ScenarioSet) -> None:
    async with connect(SHOP) as server:
        for one in found.scenarios[::6]:
            if one.plan.kind != "talk":
                ran = await rollout(answering(server, [], "I like trains."), one, verify())
                assert not solved(ran), one.task


async def test_a_time_is_right_as_it_is_in_the_run(found: ScenarioSet) -> None:
    clock = next(one for one in by_tools(found, "get_clock") if one.plan.readings[0].path == ["shown"])
    async with connect(SHOP) as server:
        now = (await server.call("get_clock", {})).structured["shown"]
        ran = await rollout(answering(server, [("get_clock", {})], f"It shows {now[:5]}."), clock, verify())
        wrong = await rollout(answering(server, [("get_clock", {})], "It shows 27:77."), clock, verify())
    assert not solved(wrong)
    assert solved(ran) or now[3:5] == "59"


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
        again = await generate_scenarios(server, 120, progress=False)
    assert [one.task for one in again.scenarios] == [one.task for one in found.scenarios]
    assert [one.plan.split for one in again.scenarios] == [one.plan.split for one in found.scenarios]


async def test_an_interrupted_generation_goes_on_with_the_same_sets(found: ScenarioSet) -> None:
    earlier, later = found.scenarios[:50], []
    async with connect(SHOP) as server:
        both = await generate_scenarios(server, 90, kept=earlier, on_kept=later.append, progress=False)
    assert both.scenarios == [*earlier, *later]
    assert len(both) == 90
    held = {combination(one) for one in both.held_out_sets.get("combinations", ())}
    assert not held & {combination(one) for one in both.train}
    trained = set().union(*(values_of(one.plan.reference) for one in both.train))
    assert all(not values_of(one.plan.reference) <= trained for one in both.held_out_sets["values"])


async def test_without_a_number_the_time_ends_it() -> None:
    async with connect(SHOP) as server:
        made = await generate_scenarios(server, seconds=6, progress=False)
        again = await generate_scenarios(server, seconds=0.01, progress=False)
    assert len(made) > 100
    assert not any(one.kind == "surplus" for one in made.dropped)
    assert len(again) < len(made)
    assert [note for note in again.notes if "no argument" in note or "no two tools" in note] == []
    assert "no held-out values: the time was over before any was made" in again.notes


async def test_a_server_that_is_slow_to_start_gets_more_time(tmp_path: Path) -> None:
    async with connect(SHOP) as server:
        assert await default_seconds(server) == SECONDS
    async with connect(SHOP, worlds=[tmp_path]) as server:
        assert server.world is not None
        server.world.fastest_start = 0.1
        assert await default_seconds(server) == SECONDS
    slow = ["sh", "-c", f"sleep {1.5 * USUAL_START}; exec {shlex.join(SHOP)}"]
    async with connect(slow, worlds=[tmp_path]) as server:
        assert server.world is not None
        slower = min(server.world.fastest_start / USUAL_START, MOST_TIMES)  # a busy machine is slower than the server
        assert await default_seconds(server) == pytest.approx(SECONDS * slower)
        assert server.world.fastest_start > 1.5 * USUAL_START


async def test_texts_are_paraphrased_before_they_are_told() -> None:
    pytest.importorskip("litellm", reason="models by name are asked through litellm")

    def rewrite(body: Any) -> str:
        tasks = [line for line in body["messages"][-1]["content"].splitlines() if line[0].isdigit()]
        texts = [{"number": at, "text": f"Well, {line.partition('. ')[2]}"} for at, line in enumerate(tasks)]
        return json.dumps({"requests": texts})

    told: list[MCPScenario] = []
    with endpoint(rewrite) as at:
        async with connect(SHOP) as server:
            model = LLM("other", base_url=at.url, cache=None)
            made = await generate_scenarios(server, 24, paraphrase=model, on_kept=told.append, progress=False)
    assert told == made.scenarios
    assert all(one.task.startswith("Well, ") for one in made.scenarios)
    assert {one.plan.phrasing for one in made.scenarios} == {"other"}
    assert any(note.startswith("paraphrased by other: 24 of 24; ") for note in made.notes)


async def test_what_changes_the_server_is_checked_by_its_calls() -> None:
    async with connect(SHOP) as server:
        catalog = await read_catalog(server)
        note = MCPScenario.make("Note it.", Plan(reference=[Step(tool="add_note", arguments={"text": "x"})]))
        [kept], dropped = await execute(server, [note], catalog, allow_destructive=True)
    assert (kept.plan.facts, dropped) == ([], [])


async def test_scenarios_with_the_same_messages_get_the_results_of_their_own_calls() -> None:
    async with connect(SHOP) as server:
        catalog = await read_catalog(server)
        listed = MCPScenario.make("Look.", Plan(reference=[Step(tool="list_items")]))
        priced = MCPScenario.make("Look.", Plan(reference=[Step(tool="get_price", arguments={"item_id": "it-77"})]))
        (first, second), _ = await execute(server, [listed, priced], catalog)
    assert "it-88" in first.plan.observations[0].text
    assert "it-88" not in second.plan.observations[0].text


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
            server, 12, resources={"item_id": ["it-88"]}, difficulty=(1, 1), seed=3, progress=False
        )
        assert {one.plan.difficulty for one in found.scenarios} == {1}
        asked = [one.plan for one in by_tools(found, "get_price") if one.plan.reply == "result"]
        assert {plan.reference[0].arguments["item_id"] for plan in asked} == {"it-88"}
        with pytest.raises(ConfigError, match="has a parameter 'colour'"):
            await generate_scenarios(server, 6, resources={"colour": ["red"]}, progress=False)


async def test_a_bare_catalog_gives_drafts_and_says_so() -> None:
    schema = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"]}
    catalog = Catalog.of_tools([{"name": "get_menu", "inputSchema": schema}])
    found = await generate_scenarios(catalog, 20, progress=False)
    assert len(found) == 20
    assert any(note.startswith("not executed") for note in found.notes)
    assert any(note.startswith("no held-out combinations: only one tool") for note in found.notes)
    assert all(one.plan.reference[0].arguments["day"] in one.task for one in found.scenarios)
    assert found.train


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
    for settings in ({"n": 0}, {"difficulty": (3, 2)}, {"held_out": 1.0}, {"seconds": 0}):
        with pytest.raises(ConfigError):
            await generate_scenarios(catalog, progress=False, **settings)  # type: ignore[arg-type]
