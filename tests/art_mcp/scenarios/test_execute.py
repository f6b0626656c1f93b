"""What a scenario keeps of the results of its calls."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import pytest

from art_mcp import Catalog, Server
from art_mcp.client.result import CallResult
from art_mcp.scenarios.execute import SAMPLE, Execution, Trial
from art_mcp.scenarios.plan import MCPScenario, Plan, Reading, Step
from art_mcp.scenarios.trials import Trials
from art_mcp.specialization.demonstrations import demonstration, demonstrations
from art_mcp.worlds.change import Change
from trainer_server.wire import ConfigError

LONG = {"head": "a1", "notes": "so " * SAMPLE, "author": "Ada"}
RESULT = CallResult(json.dumps(LONG), LONG)
SHORT = CallResult("It is late.")


def trial(*results: CallResult) -> Trial:
    done = Execution([Step(tool="look", reads=True)] * len(results), list(results), None)
    return Trial(done, done, None)


def lengths(of: Trial, *facts: str, read: Reading | None = None) -> list[int]:
    return [len(seen.text) for seen in of.observations(facts, [read] if read else [])]


def test_a_result_is_cut_if_its_beginning_has_all_that_is_asked_for() -> None:
    whole = len(RESULT.text)
    assert lengths(trial(RESULT)) == [SAMPLE]
    assert lengths(trial(RESULT), "a1") == [SAMPLE]
    assert lengths(trial(RESULT), "a1", "Ada") == [whole]
    assert trial(RESULT).observations(["Ada"])[0].structured == LONG
    assert lengths(trial(SHORT, RESULT, CallResult("x" * whole)), "Ada") == [len(SHORT.text), whole, SAMPLE]
    assert lengths(trial(SHORT, RESULT), "Bob") == [len(SHORT.text), whole], "it may be there in another form"


def test_a_result_is_whole_if_a_value_is_read_off_it() -> None:
    whole = len(RESULT.text)
    assert lengths(trial(SHORT, RESULT), read=Reading(step=1, path=["head"])) == [len(SHORT.text), whole]
    assert lengths(trial(SHORT, RESULT), read=Reading(step=0, path=[])) == [len(SHORT.text), SAMPLE]
    assert lengths(trial(SHORT, RESULT), read=Reading(step=1, path=[])) == [len(SHORT.text), whole]
    lines = CallResult("Author: Ada\n" + "so\n" * SAMPLE)
    assert lengths(trial(lines), read=Reading(step=0, path=["Author", 0])) == [SAMPLE]


@pytest.mark.parametrize("answer", ["", "The author is Ada."])
def test_scenarios_of_earlier_sets_whose_result_was_cut_before_a_reading_are_left_out(answer: str) -> None:
    done, reading = trial(RESULT), Reading(step=0, path=["author"])
    plan = Plan(reference=done.steps, readings=[reading], answer=answer, observations=done.observations())
    cut = MCPScenario.make("Who is it?", plan)
    whole = cut.with_plan(observations=done.observations(readings=[reading]))
    (shown,) = demonstrations([cut, whole], [])
    assert shown.messages[-1]["content"] == "The author is Ada."
    with pytest.raises(ConfigError, match="cannot be shown"):
        demonstration(cut)
    assert not plan.model_copy(update={"observations": []}).executed


def test_an_act_that_does_nothing_is_no_task() -> None:
    """Where its tool has changed the world at other times."""
    server = cast(Server, SimpleNamespace(world=None, disposable=True))
    trials = Trials(server, Catalog(tools=[]), changing={"write_note"})

    def made(tool: str, changes: list[Change], reads: bool = False) -> Trial:
        done = Execution([Step(tool=tool, reads=reads)], [SHORT], changes)
        return Trial(done, done, changes)

    change = Change(where="/world/a", what="content", after="x")
    assert trials._is_idle(made("write_note", []))
    assert not trials._is_idle(made("write_note", [change]))
    assert not trials._is_idle(made("send_note", []))  # nobody saw it change a world, which may not show what it does
    assert not trials._is_idle(made("write_note", [], reads=True))
