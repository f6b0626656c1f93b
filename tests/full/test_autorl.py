"""AutoRL on a real model: from a description and a judge that scores by a written rule, to a version that is better."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import LLM, ChatART, GRPOConfig, TrainerClient, autorl
from tests.support.judge_app import candidates, endpoint, verdict

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("found_by_clients")]

THINGS = (
    "tea honey rice salt bread milk soap glass paper wood iron gold silk wool sand snow rain wind fire water clouds"
    " tides rivers lakes hills caves roads boats trains bikes clocks maps coins books songs drums bells lamps tents"
    " ropes chess bees owls whales cacti moss amber coral"
)


def by_rule() -> Callable[[dict[str, Any]], str]:
    """Writes questions about things; scores an answer by its number of words: the fewer, the better."""
    left = iter(THINGS.split())

    def answer(body: dict[str, Any]) -> str:
        if body["response_format"]["json_schema"]["name"] == "Texts":
            return json.dumps({"inputs": [f"Tell me about {next(left)}." for _ in range(8)]})
        return verdict({one: max(0.0, 1 - len(text.split()) / 30) for one, text in candidates(body).items()})

    return answer


async def test_a_policy_gets_better_by_what_the_judge_was_told_to_prefer() -> None:
    model = ChatART(policy="brief", max_tokens=24)

    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply").compile()
    async with TrainerClient() as client:
        with endpoint(by_rule()) as at:
            report = await autorl(
                "Answer questions about things in as few words as possible.", graph=graph, policy="brief",
                judge=LLM("judge", base_url=at.url, cache=None), client=client, scenarios=32, steps=6,
                groups_per_step=4, n=8, config=GRPOConfig(lr=1e-3), progress=False,
            )  # fmt: skip
    assert report.comparison.unscored == 0
    assert report.comparison.win_interval[0] > 0.5, str(report.comparison)
    difference = report.comparison.difference
    assert difference is not None
    gain, interval = difference
    assert interval is not None
    assert 0 < interval[0] < gain, str(report.comparison)
