"""A graph built on structured output learns: its completions are sampled under a grammar, and trained all the same."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langgraph.graph import START, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from art_langgraph import ChatART, GRPOConfig, TrainerClient, Trajectory, train

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("found_by_clients")]


class Choice(BaseModel):
    color: Literal["red", "green", "blue"]


class State(TypedDict, total=False):
    question: str
    color: str


async def test_a_structured_output_graph_learns() -> None:
    """Which of three words is right shows in the reward alone."""
    model = ChatART(policy="structured", max_tokens=48).with_structured_output(Choice, method="json_schema")

    async def choose(state: State) -> State:
        found = await model.ainvoke([("user", state["question"])])
        assert isinstance(found, Choice)
        return {"color": found.color}

    graph = StateGraph(State).add_node("choose", choose).add_edge(START, "choose").compile()

    def reward(trajectory: Trajectory) -> float:
        output: Any = trajectory.output
        return float(output["color"] == "green")

    async with TrainerClient() as trainer:
        await trainer.create_policy("structured")
        rewards: list[float] = []
        metrics: list[dict[str, Any]] = []
        cars = [{"question": f"Pick a color for car {number}."} for number in range(8)]
        async for record in train(
            graph, cars, policy="structured", reward=reward, steps=16, client=trainer, groups_per_step=2, n=12,
            config=GRPOConfig(lr=1e-3), progress=False,
        ):  # fmt: skip
            if record.reward is not None:
                rewards.append(record.reward)
            metrics.append(record.result.metrics)
            if rewards and rewards[-1] > 0.8:
                break
        assert sum(one["constrained"] for one in metrics) > 0
        assert rewards[-1] > rewards[0] + 0.4, rewards
