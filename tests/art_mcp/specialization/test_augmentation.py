"""Demonstrations with fresh values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.tools import BaseTool, StructuredTool

from art_mcp import MCPScenario
from art_mcp.scenarios.plan import Observation, Plan, Step
from art_mcp.specialization.augmentation import Renamer
from art_mcp.specialization.demonstrations import demonstration

SHOW = Step(tool="show", arguments={"repo": "/world/project", "revision": "9f3c07ab", "order": "newest"})
RESULT = "commit 9f3c07ab1122334455667788\nAuthor: Ada Berg <ada@example.com>\nDate: 2026-06-09\n\n+++ b/src/harbour.py"


def tool(name: str, **properties: Any) -> BaseTool:
    schema = {"type": "object", "properties": properties}
    return StructuredTool.from_function(lambda: "", name=name, description="Shows things.", args_schema=schema)


TOOLS = [tool("show", repo={"type": "string"}, revision={"type": "string"}, order={"enum": ["newest", "oldest"]})]


def asked(fact: str = "Ada Berg", **changes: Any) -> MCPScenario:
    plan = Plan(reference=[SHOW], observations=[Observation(text=RESULT)], facts=[fact], answer=f"It is {fact}.")
    task = "Show me 9f3c07ab in /world/project, newest first: who is the author?"
    return MCPScenario.make(task, plan.model_copy(update=changes))


def renamed(*scenarios: MCPScenario, held_out: list[MCPScenario] | None = None, seed: int = 0) -> list[MCPScenario]:
    return Renamer(TOOLS, held_out or [], seed).rename(scenarios)


def test_a_value_is_shown_once_as_it_is_and_then_never_again() -> None:
    first, second, third = renamed(asked(), asked(), asked())
    assert first == asked()
    assert len({one.plan.facts[0] for one in (first, second, third)}) == 3
    assert len({one.plan.reference[0].arguments["revision"] for one in (first, second, third)}) == 3
    assert renamed(asked(), asked()) == [first, second], "the same seed gives the same values"
    assert renamed(asked(), asked(), seed=1)[1] != second


def test_a_fresh_value_is_the_same_in_task_call_result_and_answer() -> None:
    made = renamed(asked(), asked())[1]
    (name,), revision = made.plan.facts, made.plan.reference[0].arguments["revision"]
    told = json.dumps(demonstration(made))
    assert "9f3c07ab" not in told
    assert "Ada" not in told
    assert len(revision) == 8
    assert f"Show me {revision} in /world/project, newest first" in told
    assert f"commit {revision}" in made.plan.observations[0].text, "an abbreviation is the beginning of the whole hash"
    assert f"<{name.split()[0].lower()}@example.com>" in made.plan.observations[0].text
    assert made.plan.answer == f"It is {name}."
    assert [word.istitle() for word in name.split()] == [True, True]


def test_hashes_that_begin_like_a_number_or_a_word_stay_hashes() -> None:
    for known in ("123456ab", "abcdef12"):
        step = Step(tool="show", arguments={"revision": known})
        plan = Plan(reference=[step], observations=[Observation(text=f"commit {known}0099 of 1234 by x")])
        task = MCPScenario.make(f"Show {known}.", plan)
        made = renamed(task, task)[1].plan
        fresh = made.reference[0].arguments["revision"]
        assert fresh != known
        assert set(fresh) <= set("0123456789abcdef")
        assert made.observations[0].text.startswith(f"commit {fresh}")
        assert len(made.observations[0].text) == len(plan.observations[0].text)


def test_words_of_the_schema_of_the_world_of_keys_and_of_the_question_stay() -> None:
    made = renamed(asked("src/harbour.py"), asked("src/harbour.py"))[1]
    arguments = made.plan.reference[0].arguments
    assert (arguments["repo"], arguments["order"]) == ("/world/project", "newest")
    assert made.plan.facts[0].endswith(".py")
    assert made.plan.observations[0].text.splitlines()[1:3] == RESULT.splitlines()[1:3]
    author = renamed(asked("Author Berg"), asked("Author Berg"))[1]
    assert author.plan.facts[0].startswith("Author ")


def test_numbers_stay_where_a_result_may_be_computed_from_them() -> None:
    def scenario(result: str, fact: str) -> MCPScenario:
        step = Step(tool="show", arguments={"first": 17, "second": 25, "few": 3})
        plan = Plan(reference=[step], observations=[Observation(text=result)], facts=[fact], answer=f"It is {fact}.")
        return MCPScenario.make("Show 17 and 25, of 3: what is it?", plan)

    total = scenario("The sum is 42.", "42")
    assert renamed(total, total)[1] == total
    listed = scenario("Entries\n- lamp 17\n- chair 25\nTotal: 2", "lamp")
    arguments = renamed(listed, listed)[1].plan.reference[0].arguments
    assert arguments["few"] == 3
    assert {arguments["first"], arguments["second"]}.isdisjoint({17, 25})
    assert all(12 < arguments[name] < 100 for name in ("first", "second"))


def test_numbers_that_were_asked_for_keep_their_shape() -> None:
    seen = Observation(text='{"price": 24.75, "stock": 140, "rows": 3}', structured={"price": 24.75, "stock": 140})
    plan = Plan(reference=[Step(tool="show")], observations=[seen], facts=["24.75", "140", "3"])
    task = MCPScenario.make("What is there?", plan.model_copy(update={"answer": "It is 24.75, 140 and 3."}))
    made = renamed(task, task)[1].plan
    price, stock, rows = made.facts
    assert price != "24.75"
    assert stock != "140"
    assert rows == "3", "it may count what the result shows"
    assert (len(price.partition(".")[0]), len(price), len(stock)) == (2, 5, 3)
    assert made.observations[0].structured == {"price": float(price), "stock": int(stock)}
    assert json.loads(made.observations[0].text) == {"price": float(price), "stock": int(stock), "rows": 3}


def test_time_zones_times_and_constants_stay() -> None:
    step = Step(tool="show", arguments={"zone": "Europe/Oslo", "in": "EUR", "at": "HEAD", "day": "2026-06-09"})
    plan = Plan(reference=[step], observations=[Observation(text="Time: late")], facts=["late"], answer="It is late.")
    task = MCPScenario.make("How late is it in Europe/Oslo and EUR at HEAD on 2026-06-09?", plan)
    assert renamed(task, task)[1].plan.reference[0].arguments == step.arguments


def test_a_city_is_a_name_like_any_other() -> None:
    step = Step(tool="open", arguments={"name": "Lima"})
    seen = Observation(text='{"name": "Lima", "bridges": "many"}')
    plan = Plan(reference=[step], observations=[seen], facts=["many"], answer="The bridges are many.")
    made = renamed(*[MCPScenario.make("How many bridges has Lima?", plan)] * 2)[1]
    city = made.plan.reference[0].arguments["name"]
    assert city != "Lima"
    assert city in made.task
    assert city in made.plan.observations[0].text


def test_structured_results_keep_their_keys() -> None:
    seen = Observation(text='{"items": [{"name": "lamp\\nshade"}]}', structured={"items": [{"name": "lamp\nshade"}]})
    plan = Plan(reference=[Step(tool="show")], observations=[seen], facts=["shade"], answer="It is shade.")
    made = renamed(*[MCPScenario.make("What is there?", plan)] * 2)[1].plan
    (fact,) = made.facts
    assert fact != "shade"
    assert made.observations[0].structured == {"items": [{"name": f"lamp\n{fact}"}]}
    assert json.loads(made.observations[0].text) == made.observations[0].structured


def test_no_held_out_value_is_drawn() -> None:
    first, second = renamed(asked(), asked())
    plan = second.plan
    again = renamed(asked(), asked(), held_out=[second])[1].plan
    assert plan.facts != again.facts
    assert plan.reference[0].arguments["revision"] != again.reference[0].arguments["revision"]
    assert first == asked()


def test_of_queries_only_the_quoted_texts_are_other_ones() -> None:
    step = Step(tool="show", arguments={"query": "SELECT price FROM lamps WHERE name = 'harbour'"}, by_result=True)
    plan = Plan(reference=[step], observations=[Observation(text="[{'price': 40}]")], facts=["40"], answer="It is 40.")
    task = MCPScenario.make("What is the price of harbour?", plan)
    made = renamed(task, task)[1].plan
    query = made.reference[0].arguments["query"]
    assert query.startswith("SELECT price FROM lamps WHERE name = '")
    assert "harbour" not in query
    assert made.observations[0].text == f"[{{'price': {made.facts[0]}}}]"
    assert made.facts != ["40"]


def told(task: str, step: Step, text: str, fact: str, structured: Any = None, **changes: Any) -> MCPScenario:
    """A scenario of one call that asks for one fact."""
    seen = Observation(text=text, structured=structured)
    plan = Plan(reference=[step], observations=[seen], facts=[fact], answer=f"It is {fact}.")
    return MCPScenario.make(task, plan.model_copy(update=changes))


def again(scenario: MCPScenario) -> MCPScenario:
    """How a scenario is shown whose values were shown before."""
    return renamed(scenario, scenario)[1]


LOOK = Step(tool="show", arguments={"revision": "harbour"})


def test_roles_of_messages_stay() -> None:
    step = Step(tool="show", arguments={"repo": "src/user.ts"})
    made = again(told("Show src/user.ts.", step, "Lines\nin src/user.ts: 9", "9"))
    assert [message["role"] for message in made.messages] == ["user"]
    assert "user" not in made.task
    assert demonstration(made)[0]["content"] == f"Show {made.plan.reference[0].arguments['repo']}."


def test_hashes_and_numbers_that_are_keys_of_results_stay() -> None:
    known = {"9f3c07ab": {"state": "harbour"}, "1234": {"state": "lamp"}}
    reading = {"step": 0, "path": ["9f3c07ab", "state"]}
    step = Step(tool="show", arguments={"revision": "9f3c07ab", "number": 1234})
    plan = Plan(reference=[step], observations=[Observation(text=json.dumps(known))], facts=["harbour"])
    plan = Plan.model_validate({**plan.model_dump(), "readings": [reading]})
    made = again(MCPScenario.make("Show 9f3c07ab and 1234.", plan))
    assert made.plan.reference == [step]
    (fact,) = made.plan.facts
    assert fact != "harbour"
    assert json.loads(made.plan.observations[0].text)["9f3c07ab"] == {"state": fact}
    assert fact in demonstration(made)[-1]["content"]


@pytest.mark.parametrize(
    ("text", "structured", "fact"),
    [
        ('{"price": 25.0, "a": 1, "b": 2, "c": 3}', {"price": 25.0, "a": 1, "b": 2, "c": 3}, "25"),
        (r'{"name": "M\u00fcller"}', {"name": "Müller"}, "Müller"),
        (r'{"name": "M\u00fcller", "cut": "of', None, "Müller"),
        (r'{"path": "C:\\notes"}', None, r"C:\notes"),
    ],
)
def test_a_result_that_spells_a_fact_in_another_way_stays(text: str, structured: Any, fact: str) -> None:
    scenario = told("What is at harbour?", LOOK, text, fact, structured)
    assert again(scenario) == scenario


def test_what_an_agent_works_out_by_itself_stays() -> None:
    query = "select price from lamps where name = 'harbour'"
    step = Step(tool="show", arguments={"query": query})
    made = again(told("What does harbour cost, and who says so?", step, "Found\nharbour\nby\nAda Berg", "Ada Berg"))
    assert made.plan.reference == [step]
    assert made.plan.facts != ["Ada Berg"]


def test_what_an_earlier_result_says_is_renamed() -> None:
    steps = [Step(tool="show"), Step(tool="show", arguments={"revision": {"$step": 0, "path": ["name"]}})]
    plan = Plan(reference=steps, observations=[Observation(text='{"name": "harbour"}'), Observation(text="x")])
    made = again(MCPScenario.make("Show the first one.", plan))
    assert made.plan.observations[0].text != plan.observations[0].text


def test_scenarios_without_calls_stay() -> None:
    plan = Plan(reply="refusal", kind="impossible", about=["pizza"], answer="I cannot order a pizza.")
    errand = MCPScenario.make("Order a pizza.", plan)
    assert again(errand) == errand


def test_numbers_of_the_schema_stay() -> None:
    pages = tool("pages", size={"enum": [20, 50]}, number={"type": "integer"})
    step = Step(tool="pages", arguments={"size": 50, "number": 98})
    scenario = told("Show 50 of 98.", step, "Pages\nof\n50\nand\n98", "98")
    arguments = Renamer([pages], [], 0).rename([scenario, scenario])[1].plan.reference[0].arguments
    assert arguments["size"] == 50
    assert arguments["number"] != 98


@pytest.mark.parametrize(("schema", "value"), [({"maximum": 19}, 18), ({"pattern": "^lam"}, "lamp")])
def test_calls_fit_the_schema(schema: dict[str, Any], value: Any) -> None:
    step = Step(tool="pages", arguments={"at": value})
    scenario = told(f"Show {value}.", step, f"Pages\nof\nall\nand\n{value}", "harbour")
    for seed in range(5):
        made = Renamer([tool("pages", at=schema)], [], seed).rename([scenario, scenario])[1]
        at = made.plan.reference[0].arguments["at"]
        assert at == value or (at <= 19 if isinstance(at, int) else at.startswith("lam"))


def test_a_sum_in_indented_json_stays() -> None:
    step = Step(tool="show", arguments={"a": 17, "b": 25})
    result = {"a": 17, "b": 25, "operation": "add", "result": 42}
    sums = told("Add 17 and 25.", step, json.dumps(result, indent=2), "42")
    assert again(sums) == sums


def test_the_number_of_a_step_is_no_number_of_a_call() -> None:
    steps = [Step(tool="show"), Step(tool="show", arguments={"revision": {"$step": 0, "path": ["name"]}})]
    seen = [Observation(text='{"name": "x"}'), Observation(text='{"price": 4711}')]
    made = again(MCPScenario.make("What does it cost?", Plan(reference=steps, observations=seen, facts=["4711"])))
    assert made.plan.facts != ["4711"]
    assert json.loads(made.plan.observations[1].text) == {"price": int(made.plan.facts[0])}


def test_words_of_the_worlds_root_stay_wherever_they_are() -> None:
    step = Step(tool="show", arguments={"path": "/world/notes.txt"})
    text, facts = "Beside\nnotes.txt\nthere is\nharbour.txt", ["notes.txt", "harbour.txt"]
    made = again(told("What is at /world/notes.txt?", step, text, "notes.txt and harbour.txt", facts=facts))
    assert made.plan.facts[0] == "notes.txt"
    assert made.plan.facts[1] != "harbour.txt"
    assert made.plan.answer == f"It is notes.txt and {made.plan.facts[1]}."


def test_an_abbreviated_hash_of_digits_alone_is_no_number() -> None:
    step = Step(tool="show", arguments={"revision": "1234567"})
    made = again(told("Who wrote 1234567?", step, "commit 1234567abc0\nby Ada Berg\n\n1234567", "Ada Berg"))
    assert made.plan.reference == [step]
    assert made.plan.facts != ["Ada Berg"]
    assert made.plan.observations[0].text.startswith("commit 1234567abc0\n")
