"""Scenarios of a lending library: seven tools with terse schemas, whose values and order only their answers tell."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from art_langgraph import rollout
from art_mcp import MCPScenario, ScenarioSet, connect, demonstration, generate_scenarios, verify
from art_mcp.specialization.verify import solved
from testbed import library
from tests.support.mcp.graphs import calling

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, library.__file__, "--db", "{world}"]
READING = {"find_books", "book_by_title", "member_loans", "members_in"}
ACTING = {"check_out", "return_book", "move_book"}
SECONDS, COUNT = 180, 320


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.make_library(tmp_path_factory.mktemp("library") / "library.db")


@pytest.fixture(scope="module")
def found(books: Path) -> ScenarioSet:
    return asyncio.run(generate_scenarios(COMMAND, COUNT, worlds=[books], seconds=SECONDS, progress=False))


def results(found: ScenarioSet) -> list[MCPScenario]:
    """The tasks that calls solve."""
    return [one for one in found.scenarios if one.plan.reply == "result"]


def test_each_of_the_tools_is_used_in_tasks_that_can_be_done(found: ScenarioSet) -> None:
    assert set(found.offered) == READING | ACTING
    assert {tool for one in results(found) for tool in one.tools} == READING | ACTING, found.report()
    assert {tool for one in found.train for tool in one.tools} == READING | ACTING


def test_acts_are_known_by_what_they_change(found: ScenarioSet) -> None:
    acting = [one for one in results(found) if ACTING & set(one.tools)]
    assert {tool for one in acting if one.plan.changes for tool in one.tools} >= ACTING, found.report()
    assert [one.task for one in results(found) if one.plan.changes and not ACTING & set(one.tools)] == []


def test_acts_that_must_fail_are_tasks_whose_answer_has_what_the_server_says(found: ScenarioSet) -> None:
    refused = [
        one for one in found.scenarios if one.plan.reply == "refusal" and re.search(r"\bon loan\b", one.plan.answer)
    ]
    assert refused, found.report()
    for one in refused:
        (call,), (seen,) = one.plan.reference, one.plan.observations
        assert call.tool in ACTING
        assert seen.is_error
        assert one.plan.answer.removeprefix("That cannot be done: ").rstrip(".") in seen.text
        assert one.plan.about == [call.arguments["title"]]
        assert one.plan.changes == []
    aside = [one for one in found.scenarios if one.plan.kind in ("impossible", "talk")]
    assert len(aside) <= 0.1 * len(found)


async def test_the_reference_of_a_task_of_each_tool_solves_it_and_another_act_does_not(
    found: ScenarioSet, books: Path
) -> None:
    async with connect(COMMAND, worlds=books) as server:
        for tool in sorted(READING | ACTING):
            one = next((scenario for scenario in results(found) if tool in scenario.tools), None)
            assert one, f"no task for {tool}"
            shown = demonstration(one)
            calls = [call["function"] for message in shown for call in message.get("tool_calls", ())]
            made = [(call["name"], json.loads(call["arguments"])) for call in calls]
            right = await rollout(calling(server, *made, answer=shown[-1]["content"]), one, verify())
            assert solved(right), (one.task, right.metrics)
            another = ("return_book", {"title": "Dune"})
            if tool in ACTING and another not in made:
                wrong = await rollout(calling(server, *made, another, answer=shown[-1]["content"]), one, verify())
                assert not solved(wrong), "a book came back that nobody asked for"
