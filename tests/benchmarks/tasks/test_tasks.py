"""The tasks that need no server: what is held out is not trained, and a right run gets the whole reward."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from art_examples.sql_agent import task as sql
from art_examples.sql_agent.databases import HELD_OUT_SUBJECTS, TRAINING_SUBJECTS, database_name, questions

from art_langgraph import Conversation, Scenario, Trajectory
from benchmarks.tasks import alphabet_sort, reverse_text
from benchmarks.tasks.registry import TASKS
from tests.support.runs.tasks import Scripted, run

TURNS = alphabet_sort.draw(alphabet_sort.invented(random.Random(1), 50, set()), random.Random(1))
QUESTIONS = questions(TRAINING_SUBJECTS[0], database_name(*TRAINING_SUBJECTS[:2]), random.Random(1))
LOCAL = ("reverse_text", "alphabet_sort", "sql")
RIGHT_RUNS = [
    pytest.param("reverse_text", reverse_text.scenario("karo"), reverse_text.demonstration("karo"), id="reverse_text"),
    pytest.param(
        "alphabet_sort", alphabet_sort.scenario(TURNS), alphabet_sort.demonstration(TURNS), id="alphabet_sort"
    ),
    *(
        pytest.param("sql", sql.scenario(asked), sql.demonstration(asked, rewritten), id=f"sql-{at}-{rewritten}")
        for at, asked in enumerate(QUESTIONS)
        for rewritten in (False, True)
        if not rewritten or "(*)" not in asked.query
    ),
]


@pytest.mark.parametrize("name", LOCAL)
async def test_what_is_held_out_is_neither_trained_nor_shown(name: str) -> None:
    async with TASKS[name](0) as first, TASKS[name](1) as second:
        held_out = {scenario.id for scenario in first.held_out}
        assert len(held_out) == len(first.held_out)
        assert held_out == {scenario.id for scenario in second.held_out}
        for task in (first, second):
            assert held_out.isdisjoint(scenario.id for scenario in task.training)
            shown = {message["content"] for example in task.demonstrations for message in example.messages}
            assert shown.isdisjoint(_asked(scenario) for scenario in task.held_out)
        assert [scenario.id for scenario in first.training] != [scenario.id for scenario in second.training]


def _asked(scenario: Scenario) -> str:
    return scenario.input if isinstance(scenario.input, str) else scenario.input["messages"][0][1]


async def test_held_out_names_are_not_in_training() -> None:
    async with alphabet_sort.alphabet_sort(0) as task:
        trained, unseen = ({name for one in some for name in _names(one)} for some in (task.training, task.held_out))
        shown = {name for one in task.demonstrations for name in alphabet_sort.names(one.messages[-1]["content"])}
    assert not (trained | shown) & unseen
    assert len(trained & shown) > 400


def _names(scenario: Scenario) -> list[str]:
    return alphabet_sort.names(scenario.metadata["answers"][-1])


def test_held_out_tables_are_not_in_training() -> None:
    assert not {one.table for one in TRAINING_SUBJECTS} & {one.table for one in HELD_OUT_SUBJECTS}


@pytest.mark.parametrize(("name", "scenario", "shown"), RIGHT_RUNS)
async def test_a_demonstration_is_a_run_of_the_graph_that_gets_the_whole_reward(
    name: str, scenario: Scenario, shown: Conversation
) -> None:
    """What the graph sends is what the demonstration has before each of its answers."""
    messages = [{key: value for key, value in one.items() if key != "weight"} for one in shown.messages]
    at = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    model = Scripted(answers=[str(messages[index]["content"]) for index in at])
    async with TASKS[name](0) as task:
        made = await run(task, scenario, model)
        assert task.success(made)
    assert model.asked == [messages[:index] for index in at]
    assert made.reward == pytest.approx(1.0)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize(
    "said", ["", "I do not know.", "DROP TABLE books", "SELECT * FROM books", "\0", "ATTACH 'x' AS y", ", , ,"]
)
async def test_a_wrong_run_gets_a_part_of_the_reward_at_most(name: str, said: str) -> None:
    async with TASKS[name](0) as task:
        made = await run(task, task.training[0], Scripted(answers=[said]))
        assert made.reward_error is None
        assert made.reward is not None
        assert 0 <= made.reward < 0.7
        assert not task.success(made)


@pytest.mark.parametrize(
    ("parts", "scenario", "said", "expected"),
    [
        (reverse_text.parts, reverse_text.scenario("karo"), "o r k a", {"letters": 1.0, "similarity": 0.75}),
        (reverse_text.parts, reverse_text.scenario("karo"), "o r", {"letters": 2 / 3, "similarity": 2 / 3}),
    ],
)
def test_the_parts_of_a_reward(
    parts: Callable[[Trajectory], dict[str, float]], scenario: Scenario, said: str, expected: dict[str, float]
) -> None:
    assert parts(Trajectory(scenario=scenario, output=said)) == {**expected, "success": 0.0}
