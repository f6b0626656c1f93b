"""Invented inputs: enough, none twice, of the graph's own schema."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from art_langgraph import LLM, LLMError, Scenario
from art_langgraph.auto_rl.duplicates import DistinctTexts
from art_langgraph.auto_rl.inputs import input_schema, invent
from tests.support.servers.judge_app import Endpoint, Fault, endpoint


def writer(at: Endpoint) -> LLM:
    return LLM("writer", base_url=at.url, backoff=0.01, retries=2, cache=None)


def numbered(per_answer: int = 8) -> Any:
    """A writer that never repeats itself."""
    count = itertools.count()
    return lambda body: json.dumps({"inputs": [f"What is {next(count)} plus one?" for _ in range(per_answer)]})


def test_texts_alike_are_seen_and_other_numbers_are_not_alike() -> None:
    seen = DistinctTexts(["What is the weather in Rome today?"])
    sums = DistinctTexts()
    assert [sums.add(f"What is 17 {sign} 5?") for sign in "+-*+"] == [True, True, True, False]
    assert not seen.add("what is the weather in rome, today")
    assert seen.add("Book a taxi to the airport.")
    assert seen.add("What is 17 + 5?")
    assert seen.add("What is 18 + 5?")
    assert not seen.add("What is 18 + 5 ?")


async def test_as_many_inputs_as_asked_for_in_batches() -> None:
    with endpoint(numbered()) as at:
        found = await invent("Add numbers.", 20, writer(at), instructions="Only small ones.", progress=False)
    assert len(found.scenarios) == 20
    assert (found.rounds, len(at.requests)) == (1, 3)
    assert str(found.scenarios[0].input).startswith("What is ")
    systems = [one["messages"][0]["content"] for one in at.requests]
    assert all("Add numbers." in one and "Only small ones." in one for one in systems)
    assert len(set(systems)) == 3  # each batch is of another difficulty


async def test_repeated_inputs_are_left_out_and_asked_for_again() -> None:
    with endpoint(json.dumps({"inputs": ["Hello there, friend"] * 8}), numbered()) as at:
        found = await invent("Greet.", 9, writer(at), examples=[Scenario.of("hello there friend")], progress=False)
    assert (len(found.scenarios), found.repeat_count) == (9, 8)
    assert found.rounds == 2
    assert "hello there friend" in at.requests[0]["messages"][1]["content"]


async def test_examples_may_be_messages_of_any_form() -> None:
    given: list[Any] = [
        {"messages": [HumanMessage("hello there friend")]},
        {"messages": [("user", "good morning all")]},
    ]
    with endpoint(json.dumps({"inputs": ["Hello there, friend", "Good morning, all", "How are you?"]})) as at:
        invented = await invent("Greet.", 1, writer(at), examples=[Scenario(input=it) for it in given], progress=False)
    assert [scenario.input for scenario in invented.scenarios] == ["How are you?"]
    told = at.requests[0]["messages"][1]["content"]
    assert "- hello there friend\n" in told + "\n"
    assert "- good morning all\n" in told + "\n"


async def test_a_writer_that_only_repeats_itself_is_given_up() -> None:
    with endpoint(json.dumps({"inputs": ["Hello."]})) as at:
        found = await invent("Greet.", 5, writer(at), rounds=3, progress=False)
    assert (len(found.scenarios), found.rounds, len(at.requests)) == (1, 3, 3)


async def test_inputs_fit_the_schema_of_the_graph() -> None:
    class State(BaseModel):
        city: str
        days: int

    async def node(state: State) -> dict[str, Any]:
        return {}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
    schema = input_schema(graph)
    assert schema is not None
    wrong = json.dumps({"inputs": [{"city": "Oslo", "days": "two"}]})
    with endpoint(wrong, json.dumps({"inputs": [{"city": "Oslo", "days": 2}]})) as at:
        found = await invent("Plan trips.", 1, writer(at), schema=schema, progress=False)
    assert [one.input for one in found.scenarios] == [{"city": "Oslo", "days": 2}]
    assert (
        "input 0 does not fit the schema: 'two' is not of type 'integer'" in at.requests[1]["messages"][-1]["content"]
    )
    messages = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    assert input_schema(messages) is None
    assert input_schema(lambda scenario: graph) is None


@pytest.mark.parametrize("fault", [Fault(401, "bad key"), '{"inputs": []}', '{"inputs": [" "]}'])
async def test_a_writer_that_fails_fails_loudly(fault: str | Fault) -> None:
    with endpoint(fault) as at, pytest.raises(LLMError, match=r"auth|malformed"):
        await invent("Greet.", 5, writer(at), progress=False)
