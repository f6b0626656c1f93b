"""multi_agent: how questions are handed on and scored, and that two steps train the supervisor's node."""

from __future__ import annotations

import random

import pytest
from art_examples.multi_agent.agent import MAX_CALLS
from art_examples.multi_agent.orders import ASKED, HELD_OUT_ASKED, WORKERS, Order, draw
from art_examples.multi_agent.task import demonstrations, multi_agent, scenario

from tests.support.runs.tasks import Scripted, learned_in_two_steps, run
from tests.support.servers.trainer_server import TrainerServer

FACTS = {"shipping": "Oslo", "billing": "20 euros", "packing": "a lamp"}
ORDER = Order(123, FACTS, ("billing", "shipping"), "Order 123: what did it cost and where is it?")


@pytest.mark.parametrize(
    "order", [ORDER, draw(random.Random(0), held_out=False), draw(random.Random(1), held_out=True)]
)
async def test_demonstrations_are_a_run_that_gets_the_whole_reward(order: Order) -> None:
    shown = [conversation.messages for conversation in demonstrations(order)]
    model = Scripted(answers=[messages[-1]["content"] for messages in shown])
    async with multi_agent(0) as task:
        made = await run(task, scenario(order), model)
        assert task.success(made)
    assert model.asked == [messages[:-1] for messages in shown]
    assert made.reward == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("answers", "parts"),
    [
        (["done"], {"workers": 0.0, "facts": 0.0, "done": 0.0}),
        (["nobody"], {"workers": 0.0, "facts": 0.0, "done": 0.0}),
        (["billing", "20 euros", "done"], {"workers": 2 / 3, "facts": 0.5, "done": 1.0}),
        (["billing", "30 euros", "shipping", "Oslo", "done"], {"workers": 1.0, "facts": 0.5, "done": 1.0}),
        (
            ["billing", "20 euros", "shipping", "Oslo", "packing", "a lamp", "done"],
            {"workers": 4 / 5, "facts": 1.0, "done": 1.0},
        ),
        (["billing", "20 euros", "shipping", "Oslo", "well"], {"workers": 1.0, "facts": 1.0, "done": 0.0}),
    ],
)
async def test_the_parts_of_the_reward(answers: list[str], parts: dict[str, float]) -> None:
    async with multi_agent(0) as task:
        made = await run(task, scenario(ORDER), Scripted(answers=answers))
        assert not task.success(made)
    weights = {"workers": 0.3, "facts": 0.2, "done": 0.1}
    assert {name: made.metrics[name] / weight for name, weight in weights.items()} == pytest.approx(parts)


async def test_a_supervisor_that_does_not_end_is_ended() -> None:
    async with multi_agent(0) as task:
        model = Scripted(answers=["packing"])
        made = await run(task, scenario(ORDER), model)
    assert len(made.output["said"]) == MAX_CALLS


async def test_questions_of_held_out_scenarios_are_not_trained() -> None:
    assert list(ASKED) == list(HELD_OUT_ASKED) == list(WORKERS)
    for worker in WORKERS:
        assert not set(ASKED[worker]) & set(HELD_OUT_ASKED[worker])
    async with multi_agent(0) as first, multi_agent(1) as second:
        assert [one.id for one in first.held_out] == [one.id for one in second.held_out]
        held_out = {one.input["question"] for one in first.held_out}
        assert not held_out & {one.input["question"] for one in [*first.training, *second.training]}


@pytest.mark.slow
async def test_two_steps_train_the_supervisor(connected: TrainerServer) -> None:
    learned = await learned_in_two_steps(multi_agent, "multi-agent", connected, [*WORKERS, "done"])
    assert len(learned.rewards) == 2
    assert learned.skipped < 2
    assert learned.tokens["training"] > 0
    assert learned.after is not None
    assert learned.after.n == 4
