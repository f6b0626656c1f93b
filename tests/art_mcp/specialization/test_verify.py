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
from art_mcp.scenarios.lines import mentions
from art_mcp.scenarios.plan import Observation, Plan, Reading, Step
from art_mcp.specialization.verify import WEIGHTS, WORLD_WEIGHT
from art_mcp.worlds.change import Change
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


SEEN = PRICE.with_plan(
    reference=[PRICE.plan.reference[0].model_copy(update={"reads": True})],
    observations=[Observation(text="1200 euros, 3 in stock")],
)


@pytest.mark.parametrize(
    ("call", "success"),
    [
        (called("get_price", "1200 euros, 3 in stock", arguments={"item_id": "IT-77"}), 1.0),
        (called("get_price", "1200 euros, 2 in stock", arguments={"item_id": "IT-77"}), 0.0),
        (called("get_price", "1200 euros, 3 in stock", arguments={"item_id": "it-78"}), 0.0),
        (called("read_price", "price: 1200"), 1.0),
        (called("read_all", "1,200", arguments={"item_id": "it-77", "all": True}), 1.0),
        (called("read_price", "price: 900"), 0.0),
        (called("read_price", "1200", arguments={"item_id": "it-88"}), 0.0),
        (called("read_price", "1200", is_error=True), 0.0),
    ],
)
async def test_another_tool_or_spelling_that_tells_the_same_does(call: ToolCall, success: float) -> None:
    found = await degrees(run(SEEN, "It costs 1200.", call))
    assert (found["success"], found["right_arguments"]) == (success, success)


async def test_a_success_is_worth_one() -> None:
    good = run(PRICE, "It costs **1200** euros.", called("get_price"))
    assert set((await degrees(good)).values()) == {1.0}
    assert good.reward == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("answer", "faithful"),
    [
        ("The price of it-77 is 1200. It is 1200 euros, to be exact.", 1.0),
        ("There is a price of 1200.\nThere is also a discount of 5.", 1.0),
        ("Yes, it is. Yes, it is. It costs 1200.", 1.0),
        ("The price of it-77 is 1200. The price of it-77 is 1200.", 0.5),
        ("The price of it-77 is 900. The price of it-77 is 1200.", 0.5),
        ("The price of it-77 is 9. The price of it-77 is 90. The price of it-77 is 1200. I hope it helps you.", 0.5),
    ],
)
async def test_an_answer_that_repeats_itself_or_guesses_is_no_success(answer: str, faithful: float) -> None:
    found = await degrees(run(PRICE, answer, called("get_price")))
    assert (found["success"], found["faithful"]) == (float(faithful == 1.0), faithful)


async def test_two_calls_may_give_the_same_sentence() -> None:
    twice = MCPScenario.make(
        "Both?", Plan(reference=[Step(tool="add", arguments={"a": at}) for at in (1, 2)], facts=["3"])
    )
    calls = [called("add", "3", arguments={"a": at}) for at in (1, 2)]
    said = ["The result of it is 3."] * 3
    assert [(await degrees(run(twice, " ".join(said[:n]), *calls)))["success"] for n in (1, 2, 3)] == [1.0, 1.0, 0.0]


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


LOOKED_UP = CHAIN.with_plan(
    observations=[Observation(text='[{"id": "it-5"}, {"id": "it-6"}]'), Observation(text='{"price": 20}')]
)


async def test_how_a_value_was_looked_up_does_not_matter() -> None:
    short = called("list_items", '[{"id": "it-5"}]', arguments={"limit": 1})
    right = called("get_price", arguments={"item_id": "it-5"})
    assert set((await degrees(run(LOOKED_UP, "20", short, right))).values()) == {1.0}
    guessed = await degrees(run(LOOKED_UP, "20", right))
    assert (guessed["success"], guessed["right_arguments"]) == (0.0, 0.0)
    wrong = called("get_price", arguments={"item_id": "it-6"})
    assert (await degrees(run(LOOKED_UP, "20", short, wrong)))["right_arguments"] == 0.0


async def test_without_facts_the_answer_is_held_to_what_the_calls_gave() -> None:
    plain = PRICE.with_plan(facts=[])
    other = await degrees(run(plain, "It is done.", called("get_price")))
    assert (other["faithful"], other["success"]) == (1.0, 1.0), "it acts, and asks for nothing"
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


NOW = MCPScenario.make(
    "What time is it?",
    Plan(reference=[Step(tool="get_time", reads=True)], readings=[Reading(step=0, path=["at"])]),
)


@pytest.mark.parametrize(
    ("answer", "success"),
    [
        ("It is 2026-11-21T14:03:09.", 1.0),
        ("It is 14:03.", 1.0),
        ("On 2026-11-21 it is 15:03.", 0.0),
        ("It is 4:03.", 0.0),
    ],
)
async def test_a_reading_is_what_this_run_got(answer: str, success: float) -> None:
    call = called("get_time", '{"at": "2026-11-21T14:03:09"}', arguments={})
    assert (await degrees(run(NOW, answer, call)))["success"] == success
    assert (await degrees(run(NOW, answer)))["success"] == 0.0


MISSING = MCPScenario.make(
    "What does it-99 cost?",
    Plan(
        reply="refusal",
        kind="impossible",
        reference=[Step(tool="get_price", arguments={"item_id": "it-99"})],
        observations=[Observation(text="no it-99", is_error=True)],
        about=["it-99"],
        changes=[],
    ),
)
ERRAND = MCPScenario.make("Call a taxi.", Plan(reply="refusal", kind="impossible", about=["taxi"]))
THANKS = MCPScenario.make("Thanks!", Plan(reply="talk", kind="talk"), [("What does it cost?", "20.")])
FAILED = called("get_price", "no it-99", arguments={"item_id": "it-99"}, is_error=True)


async def test_what_cannot_be_done_is_right_when_the_answer_says_so() -> None:
    tried = run(MISSING, "There is no it-99.", FAILED)
    assert set((await degrees(tried)).values()) == {1.0}
    assert tried.reward == pytest.approx(1.0)
    untried = await degrees(run(MISSING, "There is no it-99."))
    assert (untried["success"], untried["called"]) == (1.0, 0.0), "the call may be made, and is worth something"
    for text in ("It costs 20.", "That does not work.", "it-99 costs 20 euros"):
        assert (await degrees(run(MISSING, text, FAILED)))["success"] == 0.0
    meddling = run(MISSING, "There is no it-99.", FAILED)
    meddling.metadata["world"] = {"changes": [{"where": "/world/x", "what": "content", "after": "1"}]}
    await score(meddling, verify())
    assert meddling.metrics["success"] == 0


async def test_what_needs_no_tool_is_answered_without_a_call() -> None:
    for scenario, text in ((ERRAND, "Sorry, I cannot call a taxi."), (THANKS, "You are welcome.")):
        good = run(scenario, text)
        assert set((await degrees(good)).values()) == {1.0}
        called_anyway = await degrees(run(scenario, text, called("list_items")))
        assert (called_anyway["called"], called_anyway["right_tool"], called_anyway["success"]) == (0.0, 0.0, 0.0)
        assert (await degrees(run(scenario, "")))["success"] == 0.0
    assert (await degrees(run(ERRAND, "The taxi is on its way.")))["success"] == 0.0
    assert THANKS.task == "Thanks!"


COUNT = MCPScenario.make(
    "How many rows are there?",
    Plan(
        reference=[Step(tool="query", arguments={"sql": "select count(*) from a"}, reads=True, by_result=True)],
        observations=[Observation(text='[{"count(*)": 8}]')],
        facts=["8"],
    ),
)


@pytest.mark.parametrize(
    ("result", "fields", "success"),
    [
        ('[{"n": 8}]', {}, 1.0),
        ('[{"n": 9}]', {}, 0.0),
        ('[{"n": 8}, {"n": 8}]', {}, 0.0),
        ("8", {"is_error": True}, 0.0),
    ],
)
async def test_another_query_is_right_if_it_gives_the_same_values(
    result: str, fields: dict[str, Any], success: float
) -> None:
    call = called("query", result, arguments={"sql": "select count(id) as n from a"}, **fields)
    assert (await degrees(run(COUNT, "There are 8.", call)))["success"] == success


ADDED = Change(where="/world/repo", what="branch x", after="abc")
OTHER = Change(where="/world/repo", what="HEAD", before="main", after="x")
BRANCH = MCPScenario.make(
    "Make a branch x.", Plan(reference=[Step(tool="create", arguments={"name": "x"})], changes=[ADDED])
)


def acted(scenario: MCPScenario, *changes: Change, answer: str = "It is done.", **call: Any) -> Trajectory:
    made = run(scenario, answer, called("create", "made x from main", arguments=call or {"name": "x"}))
    made.metadata["world"] = {"changes": [change.model_dump() for change in changes]}
    return made


async def test_a_run_that_changes_what_it_should_and_nothing_else_is_worth_one() -> None:
    good = acted(BRANCH, ADDED)
    await score(good, verify())
    assert good.reward == pytest.approx(1.0)
    assert good.metrics["world"] == WORLD_WEIGHT
    assert good.metadata["world"]["differences"] == []


@pytest.mark.parametrize(
    ("changes", "degree", "said"),
    [
        ([], 0.0, "should have changed and did not: /world/repo: branch x is new: abc"),
        ([ADDED, OTHER], 0.5, "should not have changed: /world/repo: HEAD was main and is now x"),
        ([ADDED.model_copy(update={"after": "def"})], 0.0, "/world/repo: branch x should now be abc, but is def"),
    ],
)
async def test_a_world_that_differs_is_no_success_and_the_difference_is_said(
    changes: list[Change], degree: float, said: str
) -> None:
    wrong = acted(BRANCH, *changes)
    await score(wrong, verify())
    assert wrong.metrics["world"] == degree * WORLD_WEIGHT
    assert wrong.metrics["success"] == 0
    assert wrong.metadata["world"]["differences"] == [said]
    assert len(wrong.metadata["world"]["changes"]) == len(changes)


async def test_the_state_counts_and_not_by_which_calls_it_came_about() -> None:
    other_way = acted(BRANCH, ADDED, name="x", base="main")
    await score(other_way, verify())
    assert other_way.metrics["success"] > 0
    varying = BRANCH.with_plan(changes=[ADDED.model_copy(update={"varies": True})])
    for arguments, solved in (({"name": "x"}, True), ({"name": "y"}, False)):
        made = acted(varying, ADDED.model_copy(update={"after": "other"}), **arguments)
        await score(made, verify())
        assert (made.metrics["success"] > 0) is solved


async def test_where_nothing_should_change_and_nothing_did_the_world_is_no_part_of_the_reward() -> None:
    reading = PRICE.with_plan(changes=[])
    for metadata in ({"world": {"changes": []}}, {}):
        good = run(reading, "It costs 1200.", called("get_price"))
        good.metadata.update(metadata)
        assert set((await degrees(good)).values()) == {1.0}
        assert "world" not in good.metrics
    meddling = run(reading, "It costs 1200.", called("get_price"))
    meddling.metadata["world"] = {"changes": [OTHER.model_dump()]}
    await score(meddling, verify())
    assert (meddling.metrics["world"], meddling.metrics["success"]) == (0, 0)
    assert meddling.metadata["world"]["differences"] == [f"should not have changed: {OTHER}"]


async def test_a_run_that_called_nothing_changed_nothing_and_one_without_a_world_is_not_scored() -> None:
    idle = run(BRANCH, "It is done.")
    await score(idle, verify())
    assert idle.metrics["world"] == 0
    assert idle.metadata["world"]["differences"]
    nowhere = run(BRANCH, "It is done.", called("create"))
    await score(nowhere, verify())
    assert nowhere.reward is None
    assert "connect to the server with worlds=" in str(nowhere.reward_error)
    unstarted = run(BRANCH, "It is done.", called("create", is_error=True, failure="closed"))
    await score(unstarted, verify())
    assert str(unstarted.reward_error).startswith("MCPError")


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
