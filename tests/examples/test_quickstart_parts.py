"""The parts of the quickstart: scenarios, the city server over stdio, the reward."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import art_examples.quickstart as package
import pytest
from art_examples.quickstart import scenarios
from art_examples.quickstart.reward import WEIGHTS, agreement, reward, success
from langchain_core.messages import ToolCall as Call

from art_langgraph import Scenario, Trajectory
from art_langgraph.trajectory import CompletionCall, ToolCall
from art_mcp import connect

SERVER = [sys.executable, str(Path(package.__file__).with_name("city_server.py"))]


def test_held_out_scenarios_share_no_city_and_no_wording_with_training() -> None:
    training = [text(one) for seed in range(5) for one in scenarios.training_scenarios(seed)]
    held_out = [text(one) for one in scenarios.held_out_scenarios(360)]
    assert not set(scenarios.TRAINING_CITIES) & set(scenarios.HELD_OUT_CITIES)
    for kind in scenarios.KINDS:
        assert not set(kind.training) & set(kind.held_out)
    assert not set(training) & set(held_out)
    assert len(set(held_out)) == 360


def test_held_out_scenarios_are_even_over_the_kinds_and_the_same_each_time() -> None:
    found = scenarios.held_out_scenarios(120)
    assert [one.id for one in found] == [one.id for one in scenarios.held_out_scenarios(120)]
    kinds = [(one.metadata["tool"], *one.metadata["arguments"].values()) for one in found]
    names = [(tool, *rest[1:]) for tool, *rest in kinds]
    assert {names.count(name) for name in names} == {20}


def test_training_scenarios_follow_the_seed() -> None:
    assert scenarios.training_scenarios(1) == scenarios.training_scenarios(1)
    assert scenarios.training_scenarios(1) != scenarios.training_scenarios(2)


def text(scenario: Scenario) -> str:
    return str(scenario.input["messages"][0][1])


async def test_the_server_says_what_the_scenarios_want() -> None:
    async with connect(SERVER) as server:
        tools = {tool.name: tool for tool in await server.tools()}
        for scenario in scenarios.held_out_scenarios(12):
            wanted = scenario.metadata
            call = Call(name=wanted["tool"], args=wanted["arguments"], id="one", type="tool_call")
            answer = await tools[wanted["tool"]].ainvoke(call)
            assert answer.content == wanted["value"]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("get_taxi_fare", {}), ("get_bus_fare", {"city": 7}), ("get_time", {"city": "x" * 31}),
     ("get_time", {"city": "1; DROP"})],
)  # fmt: skip
async def test_the_server_refuses_wrong_arguments(tool: str, arguments: dict[str, Any]) -> None:
    async with connect(SERVER) as server:
        tools = {tool.name: tool for tool in await server.tools()}
        answer = await tools[tool].ainvoke(Call(name=tool, args=arguments, id="one", type="tool_call"))
        assert answer.status == "error"


def run_of(answer: str, *calls: ToolCall) -> Trajectory:
    wanted = {"tool": "get_bus_fare", "arguments": {"city": "Oslo", "when": "now"}, "value": "7 euros"}
    return Trajectory(
        scenario=Scenario(input="x", metadata=wanted),
        tool_calls=list(calls),
        completions=[
            CompletionCall(id="one", started=0, node="model", message={"role": "assistant", "content": answer})
        ],
    )


def call(tool: str, result: str | None = "7 euros", server: str | None = "cities", **arguments: str) -> ToolCall:
    return ToolCall(started=0, tool=tool, arguments=arguments, result=result, server=server, is_error=result is None)


RIGHT = call("get_bus_fare", city="Oslo", when="now")


def test_success_is_worth_one() -> None:
    run = run_of("A bus in Oslo costs 7 euros.", RIGHT)
    assert success(run)
    assert sum(reward(run).values()) == pytest.approx(1.0)
    assert sum(WEIGHTS.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "run",
    [
        run_of("7 euros"),
        run_of("It costs 8 euros.", RIGHT),
        run_of("7 euros", call("get_time", city="Oslo")),
        run_of("7 euros", call("get_bus_fare", city="Oslo")),
        run_of("7 euros", call("get_bus_fare", city=" Oslo", when="now")),
        run_of("7 euros", call("get_bus_fare", city="Oslo", when="now", seat="any")),
        run_of("7 euros", call("get_bus_fare", result=None, city="Oslo", when="now")),
        run_of("7 euros", call("get_bus_fare", server=None, city="Oslo", when="now")),  # no server was asked
        run_of("7 euros", call("get_time", city="Oslo"), RIGHT),
    ],
)
def test_anything_less_is_no_success_and_worth_less(run: Trajectory) -> None:
    assert not success(run)
    assert sum(reward(run).values()) < 1.0


def test_agreement_counts_missing_and_needless_arguments() -> None:
    assert agreement({"a": 1}, {"a": 1}) == 1.0
    assert agreement({"a": 1}, {"a": 1, "b": 2}) == 0.5
    assert agreement({"a": 1, "b": 2}, {"a": 1}) == 0.5
    assert agreement({}, {"a": 1}) == 0.0
