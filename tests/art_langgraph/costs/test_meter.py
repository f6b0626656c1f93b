"""What a training cost: what is known is added up, what is not is named and never 0."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from art_langgraph import Scenario, Trajectory
from art_langgraph.costs import Cost, CostMeter, GPUPrice, RunCost, Tokens
from art_langgraph.llm.spending import add_price
from art_langgraph.trajectory import CompletionCall
from trainer_server.wire import ServerUnreachable


def call(id: str | None = "c", model: str = "agent@3", **counts: Any) -> CompletionCall:
    return CompletionCall(id=id, model=model, message={"role": "assistant"}, started=time.time(), **counts)


def run(scenario: str, *calls: CompletionCall, **more: Any) -> Trajectory:
    return Trajectory(scenario=Scenario(id=scenario, input=scenario), completions=list(calls), seconds=2.0, **more)


def server(gpus: int | None, price: float | None = None) -> Callable[[], Awaitable[dict[str, Any]]]:
    """What asks a server."""

    async def health() -> dict[str, Any]:
        if gpus is None:
            raise ServerUnreachable("gone")
        return {"gpus": gpus, "gpu_hour_price": price}

    return health


FULL = {"prompt_tokens": 100, "cached_tokens": 80, "sampled_tokens": 10}


async def test_tokens_are_added_up_by_step_scenario_and_model() -> None:
    meter = CostMeter(server(2, 3.6))
    runs = [
        run("a", call(**FULL), call(None, "gpt", prompt_tokens=7, sampled_tokens=2)),
        run("b", call(prompt_tokens=50, sampled_tokens=5), call(), call(cached=True, **FULL)),
    ]
    first = await meter.step(runs, 400, (0.25, None))
    assert first.tokens == Tokens(150, 15, 80, 400, uncounted=1)
    again = await meter.step([*runs, run("a", call(**FULL)), run("a", call(**FULL), started=5.0)], None, (0.25, 0.75))
    assert (again.runs, again.tokens) == (1, Tokens(100, 10, 80)), "each run counts once, and none from before"
    assert meter.run.models == {"agent": Tokens(250, 25, 160, uncounted=1), "gpt": Tokens(7, 2)}
    assert {name: cost.runs for name, cost in meter.run.scenarios.items()} == {"a": 2, "b": 1}
    assert meter.run.scenarios["a"].tokens == Tokens(200, 20, 160)
    assert meter.run.gain == 0.5
    total = meter.run.total
    assert total.gpu_hours == pytest.approx(2 * total.seconds / 3600)
    assert total.gpu_usd == total.usd == pytest.approx(2 * total.seconds / 1000)
    assert meter.run.summary()["unpriced_models"] == ["gpt"]
    assert "not priced: calls of gpt in the graph" in str(meter.run)
    assert Cost.of_summary(total.summary()) == total


async def test_prices_of_language_models_are_those_since_the_last_step() -> None:
    add_price(5.0)
    meter = CostMeter(server(0))
    add_price(0.25)
    add_price(0.5)
    assert (await meter.step([], None, (None, None))).judge_usd == 0.75
    add_price(None)
    assert (await meter.step([], None, (None, None))).usd is None
    assert (await meter.step([], None, (None, None))).judge_usd == 0.0
    assert meter.run.total.usd is None, "one price is not known"


@pytest.mark.parametrize(
    ("price", "hours", "usd", "words"),
    [
        (GPUPrice(0), 0.0, 0.0, "no GPU"),
        (GPUPrice(2, 1.5), 2.0, 3.0, "2.00 GPU-hours (3.00 USD)"),
        (GPUPrice(2), 2.0, None, "2.00 GPU-hours (price unknown: set ART_GPU_HOUR_PRICE)"),
        (GPUPrice(None, 1.5), None, None, "GPU-hours unknown (it is not known how many GPUs the server uses"),
    ],
)
def test_what_is_not_known_is_said(price: GPUPrice, hours: float | None, usd: float | None, words: str) -> None:
    cost = Cost(seconds=3600.0, gpu_hours=price.hours(3600.0), gpu_usd=price.usd(3600.0))
    assert (cost.gpu_hours, cost.gpu_usd) == (hours, usd)
    assert words in str(cost)
    assert (cost + Cost()).usd == usd


def test_success_for_a_dollar_needs_both() -> None:
    paid = Cost(gpu_hours=1.0, gpu_usd=2.0)
    assert RunCost(paid, gain=0.5).gain_per_usd == 0.25
    assert str(RunCost(paid, gain=0.5)).endswith("held-out success +0.500, +0.250 per USD")
    assert str(RunCost(Cost(gpu_hours=1.0, gpu_usd=None), gain=0.5)).endswith("+0.500, per USD unknown")
    assert RunCost(Cost(), gain=0.5).gain_per_usd is None
    assert str(RunCost(Cost(), gain=0.5)).endswith("held-out success +0.500")
    assert RunCost(paid).gain_per_usd is None


async def test_a_server_that_does_not_say_its_price_ends_no_training() -> None:
    cost = await CostMeter(server(None)).step([], None, (None, None))
    assert (cost.gpu_hours, cost.usd) == (None, None)
