"""What a set of scenarios is like, in numbers."""

from __future__ import annotations

from art_mcp import MCPScenario
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.scenarios.summary import find_copied_words, skeleton, summary


def scenario(task: str, item: str, form: str = "ask 1") -> MCPScenario:
    return MCPScenario.make(task, Plan(reference=[Step(tool="get", arguments={"item": item})], phrasing=form))


def test_five_words_of_a_description_are_found_in_tasks() -> None:
    tasks = ["Get the price of an item, now!", "get THE price of an item", "What does it cost?", "Hello"]
    assert find_copied_words(tasks, ["Use this to get the price of an item."]) == (0.5, "the price of an item")
    assert find_copied_words(tasks, ["Get the price."]) == (0.0, "")


def test_tasks_that_differ_in_values_alone_are_phrased_alike() -> None:
    one, two = scenario("What does it-7 cost?", "it-7"), scenario("What does it-88 cost?", "it-88")
    assert skeleton(one) == skeleton(two) == "What does … cost?"
    other = scenario("The price of it-7?", "it-7", "thing 2")
    told = list(summary([one, two, other]))
    assert told[0] == "2 distinct phrasings of 2 forms; words: median 4, 5 to 95 %: 4 to 4"
    assert told[1] == "by kind: single: 3"
    assert told[2:] == [f"for example: {each.task}" for each in (one, two, other)]
    assert list(summary([])) == []


def test_the_answer_between_two_questions_is_marked() -> None:
    plan = Plan(reference=[Step(tool="get", arguments={"item": "it-7"})])
    talk = MCPScenario.make("And of it-7?", plan, [("Its price?", "It is 3.")])
    assert list(summary([talk]))[-1] == "for example: Its price? (the answer: It is 3.) And of it-7?"
