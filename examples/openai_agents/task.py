"""The task of plain_openai, for an agent of the OpenAI Agents SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
from art_examples.learning.baselines import PromptedChatART
from art_examples.learning.task import Task
from art_examples.openai_agents.process import agent_process
from art_examples.plain_openai.agent import TOOLS
from art_examples.plain_openai.task import plain_openai
from langchain_core.language_models import BaseChatModel

from art_langgraph import ChatART, Conversation, Run
from trainer_server.wire import ConfigError

TIMEOUT = 300.0  # seconds for a run


@asynccontextmanager
async def openai_agents(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed: scenarios, reward and recipe are those of plain_openai, and the tools those of the SDK."""
    async with plain_openai(seed) as task, agent_process() as url:
        shown = [Conversation(messages=one.messages, tools=SDK_TOOLS) for one in task.demonstrations]
        yield replace(
            task, name="openai_agents", graph=lambda model: agent_of(model, url), demonstrations=shown, shots=2
        )


def _as_the_sdk_says(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as `function_tool` describes it: strict, so that a grammar constrains its calls."""
    function = tool["function"]
    parameters = {
        "properties": {"thing": {"title": "Thing", "type": "string"}},
        "required": ["thing"],
        "title": f"{function['name']}_args",
        "type": "object",
        "additionalProperties": False,
    }
    return {"type": "function", "function": {**function, "parameters": parameters, "strict": True}}


SDK_TOOLS = [_as_the_sdk_says(tool) for tool in TOOLS]


def agent_of(model: BaseChatModel, url: str) -> Callable[[str, Run], Awaitable[str]]:
    """The agent as a function of a question and its run, whose address the SDK asks.

    Args:
        model: The chat model, which names the policy. The agent does not use it.
        url: Address of the agent's process.

    Raises:
        ConfigError: The model is none of the trainer server.
    """
    if not isinstance(model, ChatART):
        raise ConfigError("--model: this agent asks the trainer server alone")
    shown = model.demonstrations[: model.shots] if isinstance(model, PromptedChatART) else ()
    context = [item for one in shown for item in items(one.messages[1:])]

    async def answer(question: str, run: Run) -> str:
        asked = [*context, {"role": "user", "content": question}]
        address = {"base_url": run.base_url, "api_key": run.api_key}
        body = {"items": asked, "model": model.policy, "max_tokens": model.max_tokens, **address}
        async with httpx.AsyncClient(timeout=TIMEOUT) as http:
            said = (await http.post(f"{url}/answer", json=body)).raise_for_status().json()
        if "error" in said:
            raise RuntimeError(said["error"])
        return str(said["output"])

    return answer


def items(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as items of the Responses API."""
    made: list[dict[str, Any]] = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            made.append({"type": "function_call", "call_id": call["id"], **call["function"]})
        if message["role"] == "tool":
            output = {"call_id": message["tool_call_id"], "output": message["content"]}
            made.append({"type": "function_call_output", **output})
        elif message["content"]:
            made.append({"role": message["role"], "content": message["content"]})
    return made
