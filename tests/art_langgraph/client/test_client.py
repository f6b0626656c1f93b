"""Policies by the client: named parameters, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from art_langgraph import ARTError, TrainerClient
from trainer_server.wire import ConfigError, GroupRef, ServerError

pytestmark = pytest.mark.usefixtures("connected")


async def test_a_policy_is_created_by_named_parameters_and_found_again_by_the_same() -> None:
    async with TrainerClient() as trainer:
        options: dict[str, Any] = {"rank": 16, "alpha": 8.0, "targets": ["q_proj"], "seed": 3, "temperature": 0.7}
        made = await trainer.create_policy("named", **options)
        assert made.spec.model_dump(include=set(options)) == {**options, "targets": ("q_proj",)}
        assert await trainer.create_policy("named", **options) == made
        with pytest.raises(ARTError, match="exists with other values"):
            await trainer.create_policy("named", rank=8)


async def test_the_server_says_what_it_cannot_take() -> None:
    async with TrainerClient() as trainer:
        with pytest.raises(ServerError, match="surrogates not allowed"):
            await trainer.submit("agent", [GroupRef(scenario_id="\ud83d", trajectories=[])])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rank": 7}, r"create_policy\('wrong'\): rank: .* 1, 8, 16"), ({"alpha": -1.0}, "alpha: .* greater than 0")],
)
async def test_a_value_out_of_range_is_named(options: dict[str, float], message: str) -> None:
    async with TrainerClient() as trainer:
        with pytest.raises(ConfigError, match=message):
            await trainer.create_policy("wrong", **options)  # type: ignore[arg-type]
