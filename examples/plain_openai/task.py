"""The task: call the tool that knows what is asked, and answer with what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from art_examples.learning.baselines import LiteLLMChat, PromptedChatART
from art_examples.learning.openai_server import litellm_server
from art_examples.learning.task import IMITATION, Recipe, Task, called, says, solved, weighted_parts
from art_examples.plain_openai.agent import SYSTEM, TOOLS, answer
from art_examples.plain_openai.shop import Question, questions, shuffled
from langchain_core.language_models import BaseChatModel
from openai import AsyncOpenAI

from art_langgraph import ChatART, Conversation, GRPOConfig, Scenario, Trajectory

WEIGHTS = {"tool": 0.2, "value": 0.2, "success": 0.6}
SHOWN = 96
"""Number of demonstrations."""
RECIPE = Recipe(
    warm_start=IMITATION,
    config=GRPOConfig(lr=3e-4),
    steps=12,
    falling=True,
    groups_per_step=8,
)


@asynccontextmanager
async def plain_openai(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed. No thing and no wording of a held-out question is in training."""
    training = shuffled(seed)
    yield Task(
        name="plain_openai",
        graph=agent_of,
        training=[scenario(question) for question in training[SHOWN:]],
        held_out=[scenario(question) for question in questions("held_out")],
        validation=[scenario(question) for question in questions("validation")],
        demonstrations=[demonstration(question) for question in training[:SHOWN]],
        reward=weighted_parts(WEIGHTS, parts),
        success=solved,
        max_tokens=40,
        recipe=RECIPE,
    )


def agent_of(model: BaseChatModel) -> Callable[[str], Awaitable[str]]:
    """The agent as a function of a question, with OpenAI's client for the server that a chat model asks.

    Args:
        model: The chat model. The agent does not use it: it asks the same server for the same model itself. For a model
            of litellm, a server on this machine passes on what the agent asks.
    """
    shown: list[dict[str, Any]] = []
    if isinstance(model, PromptedChatART | LiteLLMChat):
        shown = [message for one in model.demonstrations[: model.shots] for message in one.messages[1:]]
    if isinstance(model, LiteLLMChat):
        name = model.model

        async def other(question: str) -> str:
            async with litellm_server(name) as url, AsyncOpenAI(base_url=url, api_key="none") as client:
                return await answer(question, client, name, shown)

        return other
    assert isinstance(model, ChatART)
    assert model.openai_api_key is not None
    policy, options = model.policy, {"max_tokens": model.max_tokens}
    key = model.openai_api_key.get_secret_value()  # type: ignore[union-attr]
    client = AsyncOpenAI(base_url=model.openai_api_base, api_key=key)

    async def run(question: str) -> str:
        return await answer(question, client, policy, shown, **options)

    return run


def scenario(question: Question) -> Scenario:
    """The scenario of a question."""
    wanted = {"tool": question.tool, "thing": question.thing, "value": question.value}
    return Scenario(input=question.text, metadata=wanted)


def demonstration(question: Question) -> Conversation:
    """The right run."""
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question.text},
        *called(question.tool, question.value, thing=question.thing),
        {"role": "assistant", "content": f"It is {question.value}."},
    ]
    return Conversation(messages=messages, tools=TOOLS)


def parts(trajectory: Trajectory) -> dict[str, float]:
    """The parts of the reward, each from 0 to 1.

    - tool: Whether the right tool was called, and no other one.
    - value: Whether a call gave the value that is asked for.
    - success: Whether the answer has the value.
    """
    wanted, calls = trajectory.scenario.metadata, trajectory.tool_calls
    return {
        "tool": float({call.tool for call in calls} == {wanted["tool"]}),
        "value": float(any(call.result == wanted["value"] for call in calls)),
        "success": float(says(str(trajectory.output), wanted["value"])),
    }
