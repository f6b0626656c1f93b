"""What tasks keep of results, and what is asked of servers that cannot do it."""

from __future__ import annotations

import random

import pytest

from art_mcp.client.result import CallResult
from art_mcp.scenarios.catalog import Catalog, CatalogTool
from art_mcp.scenarios.drafting.draft import Draft, ExecutedDraft
from art_mcp.scenarios.drafting.drafter import Drafter
from art_mcp.scenarios.drafting.values import Values
from art_mcp.scenarios.execute import SAMPLE, Execution, Trial
from art_mcp.scenarios.phrasing.phraser import Phraser
from art_mcp.scenarios.phrasing.questions import Question
from art_mcp.scenarios.phrasing.wish import Wish
from art_mcp.scenarios.plan import Step
from art_mcp.scenarios.production.composer import Composer
from tests.support.mcp.tools import tool


def composer(*tools: CatalogTool) -> Composer:
    catalog, rng = Catalog(tools=list(tools)), random.Random(0)
    return Composer(catalog, Drafter(catalog, tools, Values(catalog, {}, rng), rng), Phraser(rng), rng)


@pytest.mark.parametrize(
    ("question", "whole"),
    [
        (Question("leaf", "the owner", "Ada"), False),
        (Question("leaf", "the writer", "Zoe"), True),
        (Question("leaf", "the clock", "Ada", path=("Owner", 0)), False),
        (Question("leaf", "the clock", "Zoe", path=("Writer", 0)), True),
        (Question("count", "", "7", items="entries"), True),
        (Question("contains", "", "yes", items="entries", item="Ada"), True),
        (Question("last", "the last entry", "Ada"), True),
    ],
)
def test_a_result_is_whole_if_the_answer_needs_it(question: Question, whole: bool) -> None:
    step = Step(tool="get_book", reads=True)
    text = "Owner: Ada\nPages: 7\n" + "so\n" * SAMPLE + "Writer: Zoe"
    done = Execution([step], [CallResult(text)], None)
    draft = Draft("single", [step], lambda _: Wish("get the book", "getting the book"), lambda *_: [])
    made = composer(tool("get_book")).task(ExecutedDraft(draft, Trial(done, done, None), [question]), "train")
    assert made is not None
    assert made.plan.observations[0].text == (text if whole else text[:SAMPLE])


def test_no_errand_asks_for_what_a_tool_can_do() -> None:
    def weather(name: str, **more: object) -> bool:
        asked = composer(CatalogTool.model_validate({"name": name, **more})).errands
        return any("weather" in errand.about for errand in asked)

    assert weather("get_structured_text")
    assert not weather("getWeather")
    assert not weather("get_data", outputSchema={"type": "object", "properties": {"temperature": {"type": "number"}}})


def test_zero_is_asked_for_seldom_where_there_is_something_else() -> None:
    step = Step(tool="get_stock", reads=True)
    done = Execution([step], [CallResult('{"lost": 0, "stored": 7}')], None)
    draft = Draft("single", [step], lambda _: Wish("get the stock", "getting the stock"), lambda *_: [])
    several, alone = (
        [Question("leaf", "the loss", "0"), Question("leaf", "the store", "7")],
        [Question("leaf", "the loss", "0")],
    )
    composes = composer(tool("get_stock"))

    def answers(questions: list[Question]) -> list[str]:
        executed = ExecutedDraft(draft, Trial(done, done, None), questions)
        tasks = [composes.task(executed, "train") for _ in range(60)]
        return [fact for task in tasks if task for fact in task.plan.facts]

    assert 0 < answers(several).count("0") < 25
    assert set(answers(alone)) == {"0"}
