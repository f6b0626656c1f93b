"""The reward without a judge."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import Scenario, Trajectory, TrajectoryStore, rollout
from art_langgraph.rewards import score
from art_langgraph.trajectory import CompletionCall, ToolCall
from art_mcp import MCPScenario, ScenarioSet, connect, measure_difficulty, verify
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.specialization.verify import WEIGHTS, mentions
from tests.support.mcp.commands import SHOP
from trainer_server.wire import ConfigError, MCPError

PRICE = MCPScenario.make(
    "What does it-77 cost?",
    Plan(
        reference=[Step(tool="get_price", arguments={"item_id": "it-77"}, defaults={"unit": "euro"})], facts=["1,200"]
    ),
)
CHAIN = MCPScenario.make(
    "What does the first item cost?",
    Plan(
        reference=[
            Step(tool="list_items"),
            Step(tool="get_price", arguments={"item_id": {"$step": 0, "path": [0, "id"]}}),
        ],
        facts=["20"],
    ),
)


def called(tool: str, result: Any = "1200", **fields: Any) -> ToolCall:
    arguments = fields.pop("arguments", {"item_id": "it-77"})
    return ToolCall(tool=tool, arguments=arguments, result=result, server="shop", started=0, **fields)


def run(scenario: Scenario, answer: str, *calls: ToolCall) -> Trajectory:
    message = {"role": "assistant", "content": answer}
    return Trajectory(
        scenario=scenario, tool_calls=list(calls), completions=[CompletionCall(id="c", message=message, started=0)]
    )


async def degrees(trajectory: Trajectory) -> dict[str, float]:
    await score(trajectory, verify())
    assert trajectory.reward is not None, trajectory.reward_error
    return {name: round(trajectory.metrics[name] / weight, 3) for name, weight in WEIGHTS.items()}


async def test_a_success_is_worth_one() -> None:
    good = run(PRICE, "It costs **1200** euros.", called("get_price"))
    assert set((await degrees(good)).values()) == {1.0}
    assert good.reward == pytest.approx(1.0)


@pytest.mark.parametrize(
    "arguments",
    [{"item_id": "it-77", "unit": "euro"}, {"unit": "euro", "item_id": "it-77"}, {"item_id": "it-77", "note": None}],
)
async def test_defaults_order_and_nulls_do_not_matter(arguments: dict[str, Any]) -> None:
    assert (await degrees(run(PRICE, "1200", called("get_price", arguments=arguments))))["success"] == 1.0


async def test_numbers_are_the_same_however_they_are_written() -> None:
    ten = MCPScenario.make("Ten?", Plan(reference=[Step(tool="add", arguments={"a": 10, "b": [{"c": 1.0}]})]))
    assert (await degrees(run(ten, "ok", called("add", arguments={"b": [{"c": 1}], "a": 10.0}))))["success"] == 1.0


@pytest.mark.parametrize(
    ("trajectory", "expected"),
    [
        (run(PRICE, "1200"), {"called": 0, "right_tool": 0, "right_arguments": 0, "faithful": 1, "success": 0}),
        (run(PRICE, "1200", called("list_items")), {"called": 1, "right_tool": 0, "right_arguments": 0, "success": 0}),
        (
            run(PRICE, "1200", called("get_price", arguments={"item_id": "it-88"})),
            {"right_tool": 1, "right_arguments": 0, "success": 0},
        ),
        (
            run(PRICE, "1200", called("get_price", arguments={"item_id": "it-77", "unit": "yen"})),
            {"right_arguments": 0.5, "success": 0},
        ),
        (run(PRICE, "It costs 12 euros.", called("get_price")), {"right_arguments": 1, "faithful": 0, "success": 0}),
        (run(PRICE, "1200", called("get_price", is_error=True)), {"right_arguments": 1, "success": 0}),
        (
            run(PRICE, "1200", called("list_items"), called("list_items"), called("get_price")),
            {"right_tool": 0.333, "right_arguments": 1, "success": 1},
        ),
        (run(PRICE, "1200", *[called("list_items")] * 3, called("get_price")), {"right_tool": 0.25, "success": 0}),
        (run(PRICE, "", called("get_price")), {"faithful": 0, "success": 0}),
    ],
)
async def test_what_is_only_partly_right_is_worth_its_part(trajectory: Trajectory, expected: dict[str, float]) -> None:
    found = await degrees(trajectory)
    assert {name: found[name] for name in expected} == expected
    assert trajectory.reward is not None
    assert 0 <= trajectory.reward <= 1


async def test_a_value_of_an_earlier_result_is_the_one_that_this_run_got() -> None:
    listed = called("list_items", '[{"id": "it-5"}]', arguments={})
    right = called("get_price", arguments={"item_id": "it-5"})
    assert (await degrees(run(CHAIN, "20", listed, right)))["success"] == 1.0
    assert (await degrees(run(CHAIN, "20", right, listed)))["success"] == 0.0
    wrong = called("get_price", arguments={"item_id": "it-77"})
    assert (await degrees(run(CHAIN, "20", listed, wrong)))["right_arguments"] == 0.5


async def test_without_facts_the_answer_is_held_to_what_the_calls_gave() -> None:
    plain = PRICE.with_plan(facts=[])
    assert (await degrees(run(plain, "1200 euros", called("get_price"))))["faithful"] == 1.0
    other = await degrees(run(plain, "I do not know.", called("get_price")))
    assert (other["faithful"], other["success"]) == (0.0, 1.0)
    looked = plain.with_plan(reference=[plain.plan.reference[0].model_copy(update={"reads": True})])
    assert (await degrees(run(looked, "I do not know.", called("get_price"))))["success"] == 0.0
    assert (await degrees(run(looked, "1200 euros", called("get_price"))))["success"] == 1.0


@pytest.mark.parametrize(
    ("answer", "success"), [("It is 14:03 there.", 1.0), ("It is 15:03 there.", 0.0), ("It is 09:30 there.", 0.0)]
)
async def test_a_part_of_a_time_is_read_from_the_result(answer: str, success: float) -> None:
    clock = MCPScenario.make("What time is it? I left at 09:30.", Plan(reference=[Step(tool="get_time", reads=True)]))
    call = called("get_time", '{"datetime": "2026-11-21T14:03:09+01:00", "left": "09:30"}', arguments={})
    assert (await degrees(run(clock, answer, call)))["success"] == success


@pytest.mark.parametrize("failure", ["closed", "missing"])
async def test_a_run_without_its_server_is_not_scored(failure: str) -> None:
    broken = run(PRICE, "1200", called("get_price", is_error=True, failure=failure))
    await score(broken, verify())
    assert broken.reward is None
    assert str(broken.reward_error).startswith("MCPError")
    with pytest.raises(MCPError):
        verify(PRICE)(broken)


def test_a_scenario_without_a_plan_is_refused() -> None:
    with pytest.raises(ConfigError, match="no plan"):
        verify(Scenario.of("hello"))


@pytest.mark.parametrize(
    ("text", "fact", "said"),
    [
        ("It is 13.", "3", False),
        ("It is 3.0 degrees", "3", True),
        ("That makes 1,200 in all.", "1200", True),
        ("At minus five: -5", "-5", True),
        ("Europe/Oslo is it", "europe/oslo", True),
        ("a **red   fox**", "red fox", True),
        ("redder", "red", False),
        ("+8.0h", "+8.0h", True),
    ],
)
def test_when_a_text_mentions_a_fact(text: str, fact: str, said: bool) -> None:
    assert mentions(text, fact) is said


async def test_difficulty_is_how_often_a_graph_solves_it(tmp_path: Any) -> None:
    """On a real server; the scenarios' facts survive the store."""
    turn = iter(range(100))
    scenario = PRICE.with_plan(facts=["20"])
    async with connect(SHOP) as server:

        async def agent(state: MessagesState) -> dict[str, list[AIMessage]]:
            result = await server.call("get_price", {"item_id": "it-77"})
            return {"messages": [AIMessage("20 euros" if next(turn) % 2 and not result.is_error else "who knows")]}

        graph = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent").compile()
        measured = await measure_difficulty(graph, ScenarioSet([scenario]), n=4, max_concurrency=1, progress=False)
        store = TrajectoryStore(tmp_path / "runs.sqlite")
        await rollout(graph, scenario, store=store)
    assert measured.scenarios[0].plan.measured == 0.5
    assert len(measured.keep_learnable()) == 1
    [kept] = store.list()
    assert MCPScenario.of_scenario(kept.scenario).plan == scenario.plan
