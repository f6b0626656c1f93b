"""The task `cities`: the agent of the quickstart, which answers questions by the tools of an MCP server."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from art_examples.learning.task import Recipe, Task
from art_examples.quickstart import city_server
from art_examples.quickstart.agent import PROMPT, build_agent
from art_examples.quickstart.reward import reward, success
from art_examples.quickstart.scenarios import KINDS, held_out_scenarios, training_scenarios
from langchain_core.messages import convert_to_openai_messages
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from art_langgraph import Conversation, GRPOConfig, Scenario, SFTConfig
from art_mcp import connect

STEPS = 10
RECIPE = Recipe(
    warm_start=SFTConfig(lr=3e-4, num_train_epochs=1, per_device_train_batch_size=6),
    config=GRPOConfig(lr=2e-3, lr_scheduler_type="linear", max_steps=STEPS),
    steps=STEPS,
)
SHOWN = 2 * len(KINDS)
"""Number of demonstrations."""


@asynccontextmanager
async def cities(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed, with the quickstart's scenarios. Held-out cities and wordings are not trained."""
    async with connect([sys.executable, city_server.__file__]) as server:
        tools = await server.tools()
        scenarios = training_scenarios(seed)
        yield Task(
            name="cities",
            graph=lambda model: build_agent(model, tools),
            training=scenarios[SHOWN:],
            held_out=held_out_scenarios(96),
            demonstrations=[demonstration(scenario, tools) for scenario in scenarios[:SHOWN]],
            reward=reward,
            success=success,
            max_tokens=40,
            recipe=RECIPE,
        )


def demonstration(scenario: Scenario, tools: list[BaseTool]) -> Conversation:
    """The right run of a scenario. The runs that the agent shows in its prompt are context, and are not imitated."""
    prompt: list[dict[str, Any]] = convert_to_openai_messages(PROMPT)
    context = [message | {"weight": 0} if message["role"] == "assistant" else message for message in prompt]
    wanted = scenario.metadata
    function = {"name": wanted["tool"], "arguments": json.dumps(wanted["arguments"])}
    question = scenario.input["messages"][0]
    run = [
        {"role": "user", "content": question[1] if isinstance(question, tuple) else question.content},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "call", "content": wanted["value"]},
        {"role": "assistant", "content": f"It is {wanted['value']} in {wanted['arguments']['city']}."},
    ]
    return Conversation(messages=[*context, *run], tools=[convert_to_openai_tool(tool) for tool in tools])
