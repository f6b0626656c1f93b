"""plain_openai: a loop over OpenAI's client as an agent, how it is scored, and that two steps train it."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
from art_examples.learning.baselines import LiteLLMChat, PromptedChatART
from art_examples.plain_openai.agent import MAX_TURNS, SYSTEM, TOOLS, use
from art_examples.plain_openai.shop import Part, Question, look_up, questions
from art_examples.plain_openai.task import agent_of, demonstration, plain_openai, scenario

from art_langgraph import ChatART, Trajectory, rollout
from tests.support.runs.tasks import about, learned_in_two_steps
from tests.support.servers.judge_app import endpoint
from tests.support.servers.trainer_server import TrainerServer

QUESTION = Question("What does a lamp cost?", "lamp", "price")
RIGHT = 'call price {"thing": "lamp"}'


async def played(server: TrainerServer, *answers: str) -> Trajectory:
    server.engine["answers"] = list(answers)
    async with plain_openai(0) as task:
        return await rollout(agent_of(ChatART(policy="agent", max_tokens=40)), scenario(QUESTION), task.reward)


async def test_the_demonstration_is_a_run_that_gets_the_whole_reward(connected: TrainerServer) -> None:
    made = await played(connected, RIGHT, f"It is {QUESTION.value}.")
    shown = demonstration(QUESTION)
    assert made.error is None
    assert made.output == shown.messages[-1]["content"]
    assert made.reward == pytest.approx(1.0)
    assert [call.id is not None for call in made.completions] == [True, True]
    request = connected.engine["requests"][-1]
    assert request["tools"] == TOOLS == shown.tools
    assert [message["role"] for message in request["messages"]] == [one["role"] for one in shown.messages[:-1]]
    assert request["messages"][-1]["content"] == QUESTION.value
    assert request["max_tokens"] == 40


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        (["It is 5 euros."], 0.0),
        (['call stock {"thing": "lamp"}', "well"], 0.0),
        ([RIGHT, "It is cheap."], 0.4),
        ([RIGHT, f"It is 1{QUESTION.value}."], 0.4),
        (['call stock {"thing": "lamp"}', RIGHT, f"It is {QUESTION.value}."], 0.8),
        ([RIGHT] * MAX_TURNS, 0.4),
    ],
)
async def test_the_parts_of_the_reward(answers: list[str], reward: float, connected: TrainerServer) -> None:
    made = await played(connected, *answers)
    assert made.reward == pytest.approx(reward)
    assert len(made.completions) == len(answers)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("price", '{"thing": "lamp"}', QUESTION.value),
        ("price", '{"thing": "moon"}', "there is no moon"),
        ("price", '{"thing": 5}', "there is no 5"),
        ("price", "{}", "give the thing"),
        ("price", "[1]", "give the thing"),
        ("price", "no json", "give the thing"),
        ("weigh", '{"thing": "lamp"}', "there is no tool weigh"),
    ],
)
def test_a_wrong_call_is_told_to_the_model(tool: str, arguments: str, said: str) -> None:
    assert use(tool, arguments) == said


async def test_the_prompted_policy_and_other_models_see_demonstrations(
    connected: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [demonstration(QUESTION)]
    connected.engine["answers"] = ["It is nothing."]
    await rollout(agent_of(PromptedChatART(policy="agent", demonstrations=shown, shots=1)), "Why?")
    sent = connected.engine["requests"][-1]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "assistant", "user"]
    with endpoint("It is 5.") as fake:
        monkeypatch.setenv("OPENAI_API_BASE", fake.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        agent = agent_of(LiteLLMChat(model="openai/some-model", demonstrations=shown, shots=1))
        assert await agent("Why?") == "It is 5."
    (request,) = fake.requests
    assert (request["model"], request["tools"]) == ("some-model", TOOLS)
    assert [message["content"] for message in request["messages"]][::5] == [SYSTEM, "Why?"]


async def test_each_part_has_things_and_wordings_of_its_own() -> None:
    parts = [questions(part) for part in get_args(Part)]
    for one, other in itertools.combinations(parts, 2):
        assert not {question.thing for question in one} & {question.thing for question in other}
        wordings = [{question.text.replace(question.thing, "") for question in part} for part in (one, other)]
        assert not wordings[0] & wordings[1]
    assert [len(part) for part in parts] == [864, 24, 96]
    assert len({look_up("shelf", question.thing) for part in parts for question in part}) > 50
    async with plain_openai(0) as first, plain_openai(1) as second:
        assert len(first.held_out) == 96
        assert [one.id for one in first.held_out] == [one.id for one in second.held_out]
        assert [one.id for one in first.training] != [one.id for one in second.training]


@pytest.mark.slow
async def test_two_steps_train_it(connected: TrainerServer) -> None:
    """About every second run calls the right tool, so that one of four groups has unequal rewards."""
    texts = ['call price {"thing": "lamp"}', f"It is {look_up('price', 'lamp')}."]
    learned = await learned_in_two_steps(about(plain_openai, "price"), "plain-openai", connected, texts)
    assert len(learned.rewards) == 2
    assert learned.skipped < 2
    assert learned.tokens["training"] > 0
    assert learned.after is not None
    assert learned.after.n == 4
    assert learned.chosen is not None
    assert learned.after.version == {"plain-openai": learned.chosen}
    assert learned.after.failed == 0
