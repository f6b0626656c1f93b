"""The price of a GPU-hour: what the server says, or the environment."""

from __future__ import annotations

import pytest

from art_langgraph.costs import GPUPrice
from trainer_server.wire import ConfigError


def test_the_environment_comes_before_the_server() -> None:
    said = {"gpus": 4, "gpu_hour_price": 2.0}
    assert GPUPrice.of(said, {}) == GPUPrice(4, 2.0)
    assert GPUPrice.of(said, {"ART_GPU_HOUR_PRICE": "0.5"}) == GPUPrice(4, 0.5)
    assert GPUPrice.of({"ready": True}, {}) == GPUPrice(None, None)


@pytest.mark.parametrize("text", ["cheap", "-1", "nan", "inf"])
def test_a_price_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="give the price of a GPU-hour in USD"):
        GPUPrice.of({}, {"ART_GPU_HOUR_PRICE": text})
