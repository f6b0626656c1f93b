"""The real vLLM as a judge: its grammar holds answers to their schema; what it cannot judge stays unscored."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel

from art_langgraph import LLM, Ruler, Scenario, Trajectory, TrajectoryGroup
from art_langgraph.trajectory import CompletionCall

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("found_by_clients")]

TASK = Scenario(id="capital", input="What is the capital of France?")


class Choice(BaseModel):
    answer: Literal["Paris", "Rome"]


def run(said: str) -> Trajectory:
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    message = {"role": "assistant", "content": said}
    return Trajectory(
        scenario=TASK, completions=[CompletionCall(id=said, messages=asked, message=message, started=0.0)]
    )


async def test_the_grammar_holds_an_answer_to_its_schema() -> None:
    model = LLM("art/base", max_tokens=60, temperature=1.0, cache=None)
    for sample in range(3):
        found = await model.ask([{"role": "user", "content": "The capital of France?"}], Choice, sample=sample)
        assert found.answer in ("Paris", "Rome")
    assert (model.usage.calls, model.usage.retries, model.usage.cost) == (3, 0, 0.0)
    assert model.usage.completion_tokens > 0


async def test_a_weak_judge_scores_a_group_or_leaves_it_unscored() -> None:
    model = LLM("art/base", max_tokens=300, temperature=0.0, retries=1, cache=None)
    group = TrajectoryGroup(scenario=TASK, trajectories=[run("Paris."), run("I do not know."), run("Paris.")])
    found = await Ruler(model)(group)
    first, _, third = found.trajectories
    assert first.reward == third.reward
    for one in found.trajectories:
        if one.reward is None:
            assert "RULER: art/base: malformed" in str(one.reward_error)
        else:
            assert 0 <= one.reward <= 1
    print(found.rewards, model.usage, first.reward_error)
