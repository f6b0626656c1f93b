"""email_search: runs over the real MCP server, how they are scored, and that two steps train it."""

from __future__ import annotations

from typing import Any

import pytest
from art_examples.email_search.agent import MAX_TURNS
from art_examples.email_search.emails import grade, make
from art_examples.email_search.task import WEIGHTS, email_search, parts, wrong
from langchain_core.messages import convert_to_openai_messages

from art_langgraph import Scenario, Trajectory, rollout
from art_langgraph.trajectory import ToolCall
from tests.support.runs.tasks import Scripted, learned_in_two_steps, scripted
from tests.support.servers.trainer_server import TrainerServer

WANTED = {"answer": "4 March", "outdated": "14 March", "source": 12}


async def test_demonstrations_are_runs_that_get_the_whole_reward() -> None:
    async with email_search(0) as task:
        lengths = set()
        for shown in task.demonstrations[:12]:
            model = scripted(shown)
            asked, answer = shown.messages[1]["content"], shown.messages[-1]["tool_calls"][0]["function"]["arguments"]
            found = [one for one in task.demonstrations if one.messages[1]["content"] == asked]
            assert len(found) == 1
            made = await rollout(task.graph(model), {"messages": [("user", asked)]})
            said = convert_to_openai_messages(made.output["messages"])
            plain = [{"role": message["role"], "content": message["content"]} for message in shown.messages[1:]]
            assert [{"role": one["role"], "content": one["content"]} for one in said[:-1]] == plain
            assert made.tool_calls[-1].tool == "answer"
            assert str(made.tool_calls[-1].arguments["source"]) in answer
            lengths.add(len(model.asked))
    assert lengths == {3, 4}


async def test_a_run_that_goes_on_is_ended_and_mistakes_are_told_to_the_model() -> None:
    async with email_search(0) as task:
        model = Scripted(answers=['call read {"email": 99999}'])
        made = await rollout(task.graph(model), task.held_out[0], task.reward)
    assert len(model.asked) == MAX_TURNS
    assert "there is no email 99999" in model.asked[1][-1]["content"]
    assert made.error is None
    assert made.reward == 0.0


def answered(**arguments: Any) -> ToolCall:
    return ToolCall(tool="answer", arguments=arguments, started=0.0)


READ_7 = (
    '[assistant calls a tool] read({"email": 7})\n'
    "[tool result] From: A\n  To: B\n  Subject: Amber Wolf\n\n  The room is room 12."
)
ANSWER = '[assistant calls a tool] answer({{"text": "{text}", "source": {source}}})'
SEARCH = ToolCall(tool="search", arguments={}, result="3 | 2025 | A | B\n12 | 2025 | A | B", started=0.0)
READ = ToolCall(tool="read", arguments={"email": 12}, result="…", started=0.0)


@pytest.mark.parametrize(
    ("calls", "got"),
    [
        ([], set()),
        ([SEARCH], {"found"}),
        ([SEARCH.model_copy(update={"result": "112 | 2025"})], set()),
        ([SEARCH, READ], {"found", "read"}),
        ([SEARCH, READ, answered(text="on 4 March", source="12")], set(WEIGHTS)),
        ([answered(text="14 March", source=11)], set()),
        ([answered(text="4 March, before 14 March", source=12)], {"source"}),
        ([answered(text="4 March")], {"success"}),
    ],
)
def test_the_parts_of_the_reward(calls: list[ToolCall], got: set[str]) -> None:
    made = Trajectory(scenario=Scenario(input="?", metadata=WANTED), tool_calls=calls)
    assert {name for name, value in parts(made).items() if value} == got


@pytest.mark.parametrize(
    ("calls", "success", "hallucinated"),
    [([SEARCH], 0.0, False), ([answered(text="14 March")], 0.0, True), ([answered(text="4 March")], 0.6, False)],
)
def test_only_an_answer_that_was_given_can_be_wrong(calls: list[ToolCall], success: float, hallucinated: bool) -> None:
    made = Trajectory(scenario=Scenario(input="?", metadata=WANTED), tool_calls=calls, metrics={"success": success})
    assert wrong(made) is hallucinated


@pytest.mark.parametrize(
    ("went_on", "score"),
    [
        ("[assistant] I do not know.", 0.0),
        ("[tool result] 7 | 2025-03-04 | A | B", 0.25),
        ("[tool result] No email has all of these words.", 0.0),
        (f"{READ_7}", 0.25),
        (f"{READ_7}\n{ANSWER.format(text='room 12', source=7)}", 0.75),
        (f"{READ_7}\n{ANSWER.format(text='room 12', source=8)}", 0.5),
        (f"{READ_7}\n{ANSWER.format(text='room 13', source=7)}", 0.25),
        ("[assistant calls a tool] answer(no json)", 0.0),
    ],
)
def test_a_judge_of_rules_grades_what_a_run_can_know(went_on: str, score: float) -> None:
    assert grade("Which run is best?\n[system] Search.\n[user] Which room?", went_on) == score


async def test_held_out_questions_are_those_of_every_seed() -> None:
    async with email_search(0) as first, email_search(1) as second:
        assert [one.id for one in first.held_out] == [one.id for one in second.held_out]
        assert [one.id for one in first.training] != [one.id for one in second.training]
        assert not {one.id for one in first.held_out} & {one.id for one in first.training}


@pytest.mark.slow
async def test_two_steps_train_it_and_costs_are_noted(connected: TrainerServer) -> None:
    everything = ", ".join(sorted({answer for _, _, answer, _, _ in make()[1]}))  # right where nothing was corrected
    given = [f'call answer {{"text": "{text}", "source": 12}}' for text in (everything, "4 March")]
    texts = ['call search {"keywords": "budget"}', *given]
    learned = await learned_in_two_steps(email_search, "email-search", connected, texts)
    assert len(learned.rewards) == 2
    assert learned.skipped < 2
    assert set(learned.costs) == {"before", "prompted", "warm", "after"}
    for costs in learned.costs.values():
        assert costs["turns"] is not None
        assert 1 <= costs["turns"] <= MAX_TURNS
        assert costs["tokens"] is not None
        assert costs["tokens"] > costs["turns"]
