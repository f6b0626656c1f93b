"""codenames: how a round is played and credited to its two nodes, and that steps train both policies in turns."""

from __future__ import annotations

from typing import Any

import pytest
from art_examples.codenames.agent import GUESSER, SPYMASTER, allowed, build_graph
from art_examples.codenames.task import codenames, demonstrations, reward, scenario, success
from art_examples.codenames.words import CATEGORIES, words

from art_langgraph import TrainerClient, Trajectory
from tests.support.runs.tasks import Scripted, learned_in_two_steps
from tests.support.servers.trainer_server import TOKEN, TrainerServer

OURS, TABLE = ["dog", "cow"], ["red", "cow", "piano", "dog", "car", "rain"]


async def played(*answers: str) -> tuple[Trajectory, Scripted]:
    """A round in which the same model says what both say, in turn."""
    model = Scripted(answers=list(answers))
    asked = scenario(OURS, TABLE)
    return Trajectory(scenario=asked, output=await build_graph(model, model).ainvoke(asked.input)), model


async def test_demonstrations_are_a_round_that_gets_the_whole_reward() -> None:
    shown = [conversation.messages for conversation in demonstrations("animal", OURS, TABLE)]
    made, model = await played(*(messages[-1]["content"] for messages in shown))
    assert model.asked == [messages[:-1] for messages in shown]
    assert [messages[0]["content"] for messages in shown] == [SPYMASTER, GUESSER]
    assert made.output["guess"] == ["cow", "dog"]
    assert success(made)
    assert reward(made) == {"spymaster": pytest.approx(0.5), "guesser": pytest.approx(0.5)}


@pytest.mark.parametrize(
    ("answers", "spymaster", "guesser"),
    [
        (("dog",), 0.0, 0.0),  # a word of the table is not allowed: nobody guesses
        (("two words",), 0.0, 0.0),
        (("animal", "dog, red"), 0.3, 0.3),
        (("animal", "piano, red"), 0.1, 0.1),
        (("animal", "dog, cow, red"), 0.1, 0.0),
        (("animal", "dog, dog"), 0.1, 0.0),
        (("animal", "I guess dog"), 0.1, 0.0),
    ],
)
async def test_rewards_of_the_nodes(answers: tuple[str, ...], spymaster: float, guesser: float) -> None:
    made, model = await played(*answers)
    assert len(model.asked) == len(answers)
    assert reward(made) == {"spymaster": pytest.approx(spymaster), "guesser": pytest.approx(guesser)}
    assert not success(made)


def test_the_name_of_a_category_is_a_clue_that_is_allowed() -> None:
    everything = " ".join(CATEGORIES.values()).split()
    assert len(set(everything)) == len(everything)
    for category in CATEGORIES:
        assert allowed(category, everything), category
        assert not set(words(category, True)) & set(words(category, False))
        assert len(words(category, True)) == 3


async def test_no_word_of_a_held_out_table_is_trained() -> None:
    async with codenames(0) as first, codenames(1) as second:
        assert [one.id for one in first.held_out] == [one.id for one in second.held_out]
        held_out, trained = (
            {word for one in scenarios for word in one.input["table"]} for scenarios in (first.held_out, first.training)
        )
        assert not held_out & trained
        assert [len(shown) for shown in first.demonstrations_by_role()] == [160, 160]


@pytest.mark.slow
async def test_steps_train_both_policies_in_turns(connected: TrainerServer) -> None:
    texts: list[Any] = [*CATEGORIES, *(", ".join(words(name, False)[:2]) for name in CATEGORIES)]
    learned = await learned_in_two_steps(codenames, "codenames", connected, texts)
    assert len(learned.rewards) == 2
    assert learned.after is not None
    assert learned.after.n == 4
    async with TrainerClient(connected.url, TOKEN) as client:
        versions = [(await client.policy(f"codenames-{role}")).latest for role in ("spymaster", "guesser")]
    assert min(versions) >= 1  # the warm start
    assert sum(versions) == 2 + 2 - learned.skipped
