"""autorl: the rules of the sentence, the model that stands in, and two steps from a sentence."""

from __future__ import annotations

import pytest
from art_examples.autorl.learner import TASK, from_a_sentence, reward
from art_examples.autorl.messages import held_out, invented
from art_examples.autorl.rules import MOST_WORDS, RulesModel, rules
from art_examples.learning.runs import Options, Run
from langchain_core.messages import AIMessage

from art_langgraph import LLM, Ruler, Scenario, TrainerClient, Trajectory, TrajectoryGroup
from art_langgraph.auto_rl.inputs import invent
from art_langgraph.trajectory import CompletionCall
from tests.support.runs.tasks import answers
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.wire import ConfigError

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


async def test_other_models_are_refused(connected: TrainerServer) -> None:
    async with TrainerClient(connected.url, TOKEN) as client:
        options = Options(models=["openai/some-model"])
        with pytest.raises(ConfigError, match="--judge"):
            await from_a_sentence(Run(seed=0, client=client, policy="hotel-none", options=options, tell=print))


@pytest.mark.slow
async def test_two_steps_from_a_sentence(connected: TrainerServer) -> None:
    with answers(connected, [GOOD, LONG, RUDE]):
        async with TrainerClient(connected.url, TOKEN) as client:
            options = Options(steps=2, held_out=4)
            learned = await from_a_sentence(
                Run(seed=0, client=client, policy="hotel-two-steps", options=options, tell=print)
            )
    assert len(learned.rewards) == 2
    assert learned.skipped == 0
    assert learned.tokens["training"] > 0
    assert learned.after is not None
    assert learned.after.n == 4
    assert set(learned.seconds) == {"before", "scenarios", "train", "compare", "after"}
