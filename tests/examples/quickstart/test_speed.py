"""The speed of the processor, and what the quickstart makes of it."""

from __future__ import annotations

import pytest
from art_examples.quickstart import speed
from art_examples.quickstart.speed import HELD_OUT, HELD_OUT_IF_SLOW, choose_held_out, expected_seconds, product_rate

from trainer_server.process.hardware import DType


@pytest.mark.parametrize(("rate", "dtype", "chosen"), [(1e4, "float32", HELD_OUT), (1.0, "bfloat16", HELD_OUT_IF_SLOW)])
def test_a_slow_processor_measures_on_fewer_scenarios_and_the_time_is_printed(
    rate: float, dtype: DType, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "flavour", lambda: "cpu")
    monkeypatch.setattr(speed, "product_rate", lambda: rate)
    monkeypatch.setattr(speed, "cpu_dtype", lambda: dtype)
    lines = list[str]()
    assert choose_held_out(None, 10, lines.append) == chosen
    minutes = max(1, round(expected_seconds(chosen, 10, rate, dtype) / 60))
    assert f"{rate:.0f} GFLOP/s" in lines[0]
    assert f"the model in {dtype}: the run takes about {minutes} minutes" in lines[0]
    assert choose_held_out(7, 10, lines.append) == 7


def test_a_gpu_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "flavour", lambda: "cuda")
    monkeypatch.setattr(speed, "product_rate", lambda: pytest.fail("measured"))
    assert choose_held_out(None, 10, pytest.fail) == HELD_OUT


def test_products_are_measured() -> None:
    assert product_rate(0.01) > 0
