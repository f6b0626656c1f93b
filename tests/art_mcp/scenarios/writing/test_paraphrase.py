"""Texts that a language model rewrites: kept only if everything that the calls need survives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from art_langgraph import LLM
from art_mcp import MCPScenario
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.scenarios.writing.paraphrase import exact, paraphrase_scenarios, survives
from tests.support.servers.judge_app import Fault, endpoint

PRICE = MCPScenario.make(
    "What does it-7 cost?",
    Plan(reference=[Step(tool="get", arguments={"item": "it-7", "unit": "euro", "exact": True})], facts=["20"]),
)
LATER = MCPScenario.make("And it-8?", Plan(reference=[Step(tool="get", arguments={"item": "it-8"})]), [("a", "b")])


def rewritten(*texts: str) -> str:
    return json.dumps({"requests": [{"number": at, "text": text} for at, text in enumerate(texts)]})


def test_what_must_survive() -> None:
    assert exact(PRICE) == ["it-7"], "the text did not say the other values"
    assert survives(PRICE, "I need the price of it-7, quickly.")
    for text in ("", PRICE.task, "What does it-77x cost?".replace("it-77x", "the lamp"), "it-7 costs 20, right?"):
        assert not survives(PRICE, text), text


async def test_usable_texts_replace_and_others_do_not() -> None:
    with endpoint(rewritten("How expensive is it-7?", "What about the other one?")) as at:
        model = LLM("other", base_url=at.url, cache=None)
        [first, second], errors = await paraphrase_scenarios([PRICE, LATER], model)
    assert errors == []
    assert first is not None
    assert (first.task, first.plan.phrasing, first.plan.reference) == (
        "How expensive is it-7?", "other", PRICE.plan.reference,
    )  # fmt: skip
    assert first.id != PRICE.id
    assert second is None
    prompt: Any = at.requests[0]["messages"][1]["content"]
    assert "0. What does it-7 cost?\n   keep: ['it-7']" in prompt


async def test_earlier_turns_stay_and_failures_are_told() -> None:
    with endpoint(rewritten("Now it-8, please.")) as at:
        [later], _ = await paraphrase_scenarios([LATER], LLM("other", base_url=at.url, cache=None))
    assert later is not None
    assert [message["content"] for message in later.messages] == ["a", "b", "Now it-8, please."]
    with endpoint(Fault(402, "pay first")) as at:
        [none], errors = await paraphrase_scenarios([LATER], LLM("other", base_url=at.url, cache=None, retries=0))
    assert none is None
    assert "pay first" in errors[0]


@pytest.mark.parametrize("answer", [rewritten(), json.dumps({"requests": []})])
async def test_texts_that_are_missing_leave_the_task_as_it_is(answer: str) -> None:
    with endpoint(answer) as at:
        assert await paraphrase_scenarios([PRICE], LLM("other", base_url=at.url, cache=None)) == ([None], [])
