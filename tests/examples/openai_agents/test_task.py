"""openai_agents: the agent in its own process and environment, and that two steps train it."""

from __future__ import annotations

import pytest
from art_examples.learning.baselines import LiteLLMChat
from art_examples.openai_agents.task import SDK_TOOLS, items, openai_agents
from art_examples.plain_openai.agent import SYSTEM
from art_examples.plain_openai.shop import THINGS, Question, look_up
from art_examples.plain_openai.task import demonstration, scenario

from art_langgraph import ChatART, gather, rollout
from tests.support.frameworks.environments import framework_environment
from tests.support.runs.tasks import about, learned_in_two_steps
from tests.support.servers.judge_app import endpoint
from tests.support.servers.trainer_server import TrainerServer

QUESTION = Question("What does a lamp cost?", "lamp", "price")


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_AGENTS_PYTHON", str(framework_environment("openai-3")))


def test_a_demonstration_as_items_of_the_responses_api() -> None:
    made = items(demonstration(QUESTION).messages[1:])
    assert made == [
        {"role": "user", "content": QUESTION.text},
        {"type": "function_call", "call_id": "call", "name": "price", "arguments": '{"thing": "lamp"}'},
        {"type": "function_call_output", "call_id": "call", "output": QUESTION.value},
        {"role": "assistant", "content": f"It is {QUESTION.value}."},
    ]


@pytest.mark.servers
async def test_runs_at_once_share_a_process_and_keep_their_completions(connected: TrainerServer, agents: None) -> None:
    right = ['call price {"thing": "lamp"}', f"It is {QUESTION.value}."]
    async with openai_agents(0) as task:
        connected.engine["answers"] = list(right)
        ((group),) = await gather(task.graph(ChatART(policy="agent", max_tokens=40)), [scenario(QUESTION)], 1,
                                  task.reward, progress=False)  # fmt: skip
        (made,) = group.trajectories
        assert made.error is None
        assert made.reward == pytest.approx(1.0)
        request = connected.engine["requests"][-1]
        assert request["tools"] == SDK_TOOLS, "demonstrations must have the tools that the SDK describes"
        assert [message["role"] for message in request["messages"]] == ["system", "user", "assistant", "tool"]
        assert request["messages"][0]["content"] == SYSTEM
        asked = [scenario(Question(f"say {thing}", thing, "price")) for thing in THINGS[:12]]
        groups = await gather(task.graph(ChatART(policy="agent", max_tokens=40)), asked, 1, task.reward, progress=False)
    for group, thing in zip(groups, THINGS, strict=False):
        (made,) = group.trajectories
        assert made.output == thing
        assert [(call.message or {})["content"] for call in made.completions] == [thing]


@pytest.mark.servers
async def test_what_the_sdk_raises_is_the_runs_error(connected: TrainerServer, agents: None) -> None:
    async with openai_agents(0) as task:
        connected.engine["answers"] = ["call weigh {}"]
        ((group),) = await gather(task.graph(ChatART(policy="agent")), [scenario(QUESTION)], 1, task.reward,
                                  progress=False)  # fmt: skip
    (made,) = group.trajectories
    assert "weigh" in str(made.error)
    assert made.reward == 0.0
    assert len(made.completions) == 1


@pytest.mark.servers
async def test_other_models_are_asked_over_a_server_on_this_machine(
    agents: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with openai_agents(0) as task:
        with endpoint("It is 5.") as fake:
            monkeypatch.setenv("OPENAI_API_BASE", fake.url)
            monkeypatch.setenv("OPENAI_API_KEY", "a-key")
            model = LiteLLMChat(model="openai/some-model", demonstrations=task.demonstrations, shots=1)
            made = await rollout(task.graph(model), scenario(QUESTION), task.reward)
    assert (made.error, made.output) == (None, "It is 5.")
    (request,) = fake.requests
    assert request["tools"] == SDK_TOOLS
    assert [message["role"] for message in request["messages"]] == [
        "system", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip


@pytest.mark.servers
async def test_two_steps_train_it(connected: TrainerServer, agents: None) -> None:
    """About every second run calls the right tool, so that one of four groups has unequal rewards."""
    texts = ['call price {"thing": "lamp"}', f"It is {look_up('price', 'lamp')}."]
    learned = await learned_in_two_steps(about(openai_agents, "price"), "openai-agents", connected, texts)
    assert len(learned.rewards) == 2
    assert learned.skipped < 2
    assert learned.after is not None
    assert learned.after.n == 4
