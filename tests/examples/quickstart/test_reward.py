"""The quickstart's reward."""

from __future__ import annotations

import pytest
from art_examples.quickstart.reward import WEIGHTS, parts, reward, success

from art_langgraph import Scenario, Trajectory
from art_langgraph.trajectory import CompletionCall, ToolCall


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
        run_of("It costs 27 euros.", RIGHT),
        run_of("7 euros", call("get_time", city="Oslo")),
        run_of("7 euros", call("get_bus_fare", city="Oslo")),
        run_of("7 euros", call("get_bus_fare", city="Oslo", when="now", seat="any")),
        run_of("7 euros", call("get_bus_fare", result=None, city="Oslo", when="now")),
        run_of("7 euros", call("get_bus_fare", server=None, city="Oslo", when="now")),  # no server was asked
        run_of("7 euros", call("get_time", city="Oslo"), RIGHT),
    ],
)
def test_anything_less_is_no_success_and_worth_less(run: Trajectory) -> None:
    assert not success(run)
    assert sum(reward(run).values()) < 1.0


def test_spaces_around_a_name_do_not_count_since_the_server_ignores_them() -> None:
    assert success(run_of("7 euros", call("get_bus_fare", city=" Oslo", when="now")))


def test_a_wrong_tool_is_worth_nothing_whatever_is_said_then() -> None:
    assert sum(reward(run_of("7 euros", call("get_taxi_fare", city="Oslo", when="now"))).values()) == 0.0


@pytest.mark.parametrize(
    ("given", "wanted", "share"),
    [
        ({"a": "1"}, {"a": "1", "b": "2"}, 0.5),
        ({"a": "1", "b": "2"}, {"a": "1"}, 0.5),
        ({}, {"a": "1"}, 0.0),
        ({}, {}, 1.0),
    ],
)
def test_missing_and_needless_arguments_are_wrong_and_none_are_right_where_none_are_wanted(
    given: dict[str, str], wanted: dict[str, str], share: float
) -> None:
    run = run_of("7 euros", call("get_bus_fare", **given))
    run.scenario.metadata["arguments"] = wanted
    assert parts(run)["right_arguments"] == share
    assert success(run) == (share == 1.0)
