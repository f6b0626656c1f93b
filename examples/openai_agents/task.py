"""The task of plain_openai, for an agent of the OpenAI Agents SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
from art_examples.learning.baselines import MAX_TOKENS, LiteLLMChat, PromptedChatART
from art_examples.learning.openai_server import litellm_server
from art_examples.learning.task import Task
from art_examples.openai_agents.process import agent_process
from art_examples.plain_openai.agent import TOOLS
from art_examples.plain_openai.task import plain_openai
from langchain_core.language_models import BaseChatModel

from art_langgraph import ChatART, Conversation, Run


@asynccontextmanager
async def openai_agents(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed: scenarios, reward and recipe are those of plain_openai, and the tools those of the SDK."""
    async with plain_openai(seed) as task, agent_process() as url:
        shown = [Conversation(messages=one.messages, tools=SDK_TOOLS) for one in task.demonstrations]
        yield replace(task, name="openai_agents", graph=partial(agent_of, url=url), demonstrations=shown, shots=2)


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
        model: The chat model, which names the policy. The agent does not use it. A server on this machine passes on
            what the agent asks of a model of litellm.
        url: Address of the agent's process.
    """
    shown = model.demonstrations[: model.shots] if isinstance(model, PromptedChatART | LiteLLMChat) else ()
    context = [item for one in shown for item in items(one.messages[1:])]

    async def ask(question: str, **how: Any) -> str:
        body = {"items": [*context, {"role": "user", "content": question}], **how}
        async with httpx.AsyncClient(timeout=300) as http:
            said = (await http.post(f"{url}/answer", json=body)).raise_for_status().json()
        if "error" in said:
            raise RuntimeError(said["error"])
        return str(said["output"])

    async def answer(question: str, run: Run) -> str:
        if isinstance(model, LiteLLMChat):
            async with litellm_server(model.model) as address:
                how = {"base_url": address, "api_key": "none", "responses": False, "max_tokens": MAX_TOKENS}
                return await ask(question, model=model.model, **how)
        assert isinstance(model, ChatART)
        how = {"base_url": run.base_url, "api_key": run.api_key, "responses": True, "max_tokens": model.max_tokens}
        return await ask(question, model=model.policy, **how)

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
