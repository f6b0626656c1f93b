"""The quickstart's agent as a task: the MCP server, the graph and the reward run here, and model and trainer there."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from art_examples.learning.learn import Learned
from art_examples.learning.runs import Run, by_recipe
from art_examples.learning.task import Recipe, Task
from art_examples.quickstart import city_server
from art_examples.quickstart.agent import build_agent
from art_examples.quickstart.reward import reward, success
from art_examples.quickstart.scenarios import held_out_scenarios, training_scenarios

from art_langgraph import GRPOConfig
from art_mcp import connect

RECIPE = Recipe(warm_start=None, config=GRPOConfig(lr=2e-3), steps=10, falling=True, shuffle=False)
"""Scenarios in the order of the quickstart, in which kinds and wordings alternate: a step has each kind once."""


@asynccontextmanager
async def cities(seed: int = 0) -> AsyncIterator[Task]:
    """The quickstart's task for a seed. Its demonstrations are in the prompt of the agent."""
    async with connect([sys.executable, city_server.__file__]) as server:
        tools = await server.tools()
        yield Task(
            name="remote_gpu",
            graph=lambda model: build_agent(model, tools),
            training=training_scenarios(seed),
            held_out=held_out_scenarios(96),
            demonstrations=(),
            reward=reward,
            success=success,
            max_tokens=40,
            recipe=RECIPE,
            costs=True,
        )


async def on_the_server(run: Run) -> Learned:
    """Says what the server is, and learns by the recipe."""
    gpus = (await run.client.health())["gpus"]
    run.tell(f"server {run.client.connection.url}: {'an unknown number of' if gpus is None else gpus} GPUs")
    return await by_recipe(cities)(replace(run, options=replace(run.options, prompted=False)))
