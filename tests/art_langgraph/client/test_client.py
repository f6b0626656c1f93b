"""Policies by the client: named parameters, and what is wrong with them."""

from __future__ import annotations

import pytest

from art_langgraph import ARTError, TrainerClient
from trainer_server.wire import ConfigError

pytestmark = pytest.mark.usefixtures("connected")


async def test_what_is_left_out_is_not_compared_with_an_existing_policy() -> None:
    async with TrainerClient() as trainer:
        spec = (
            await trainer.create_policy("named", rank=16, alpha=8.0, targets=["q_proj"], seed=3, temperature=0.7)
        ).spec
        assert (spec.rank, spec.alpha, spec.targets, spec.seed, spec.temperature) == (16, 8.0, ("q_proj",), 3, 0.7)
        assert (await trainer.create_policy("named")).spec.rank == 16
        with pytest.raises(ARTError, match="409"):
            await trainer.create_policy("named", rank=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rank": 7}, r"create_policy\('wrong'\): rank: .* 1, 8, 16"), ({"alpha": -1.0}, "alpha: .* greater than 0")],
)
async def test_a_value_out_of_range_is_named(options: dict[str, float], message: str) -> None:
    async with TrainerClient() as trainer:
        with pytest.raises(ConfigError, match=message):
            await trainer.create_policy("wrong", **options)  # type: ignore[arg-type]
