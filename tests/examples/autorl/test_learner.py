"""autorl: the rules of the sentence, the model that stands in, and two steps from a sentence."""

from __future__ import annotations

import re

import pytest
from art_examples.autorl.agent import SYSTEM
from art_examples.autorl.learner import TASK, from_a_sentence, reward
from art_examples.autorl.messages import demonstrations, held_out, invented
from art_examples.autorl.rules import MOST_WORDS, RulesModel, rules
from art_examples.learning.runs import Options, Run
from langchain_core.messages import AIMessage

from art_langgraph import LLM, Ruler, Scenario, TrainerClient, Trajectory, TrajectoryGroup
from art_langgraph.auto_rl.inputs import invent
from art_langgraph.trajectory import CompletionCall
from tests.support.runs.tasks import answers
from tests.support.servers.judge_app import endpoint
from tests.support.servers.trainer_server import TOKEN, TrainerServer

GOOD, LONG, RUDE = "We are happy to help.", f"Thank you {'very ' * MOST_WORDS}much.", "No."


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (GOOD, {"sentence", "short", "polite"}),
        (LONG, {"sentence", "polite"}),
        (RUDE, {"sentence", "short"}),
        ("Welcome. Ask me", {"short", "polite"}),
        ("", set()),
    ],
)
def test_the_rules_of_the_sentence(answer: str, kept: set[str]) -> None:
    assert {name for name, holds in rules(answer).items() if holds} == kept


def answered(text: str) -> Trajectory:
    message = {"role": "assistant", "content": text}
    call = CompletionCall(id="c", message=message, messages=[{"role": "user", "content": "Hello"}], started=0.0)
    return Trajectory(
        scenario=Scenario(input="Hello"), completions=[call], output={"messages": [AIMessage(text)]}, started=0.0
    )


@pytest.mark.usefixtures("own_cache")
async def test_the_model_of_rules_writes_scenarios_and_ranks_runs_by_the_rules() -> None:
    made = await invent(TASK, 24, LLM(RulesModel()), progress=False)
    assert len(made.scenarios) == 24
    group = TrajectoryGroup(scenario=Scenario(input="Hello"), trajectories=[answered(text) for text in (GOOD, RUDE)])
    scored = await Ruler(RulesModel()).score(group)
    assert scored.rewards == pytest.approx([1.0, 2 / 3])
    assert sum(reward(group.trajectories[0]).values()) == pytest.approx(1.0)


def test_held_out_messages_are_not_those_of_the_writer() -> None:
    assert not set(held_out()) & set(invented())
    assert len(set(held_out())) == 48


def test_examples_in_prompts_keep_the_rules() -> None:
    shown = [conversation.messages[-1]["content"] for conversation in demonstrations()]
    assert all(all(rules(answer).values()) for answer in [*shown, *re.findall("Answer: (.+)", SYSTEM)])
    assert not {conversation.messages[1]["content"] for conversation in demonstrations()} & {*held_out(), *invented()}


@pytest.mark.slow
async def test_two_steps_from_a_sentence(connected: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(GOOD) as fake, answers(connected, [GOOD, LONG, RUDE]):
        monkeypatch.setenv("OPENAI_API_BASE", fake.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        async with TrainerClient(connected.url, TOKEN) as client:
            options = Options(steps=2, held_out=4, prompted=True, models=["openai/some-model"])
            learned = await from_a_sentence(
                Run(seed=0, client=client, policy="hotel-two-steps", options=options, tell=print)
            )
    assert len(learned.rewards) == 2
    assert learned.skipped == 0
    assert learned.tokens["training"] > 0
    assert learned.after is not None
    assert learned.after.n == 4
    assert learned.prompted is not None
    assert learned.models["openai/some-model"].success_rate == 1.0
    assert len(fake.requests[0]["messages"]) == 2 + 2 * len(demonstrations())
    stages = {"before", "prompted", "openai/some-model", "scenarios", "train", "compare", "after"}
    assert set(learned.seconds) == stages
