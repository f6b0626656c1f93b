"""Settings of a warm start, by its demonstrations."""

from __future__ import annotations

import pytest

from art_mcp.specialization.stages.warm_start import EPOCHS, planned
from trainer_server.wire import Conversation


def conversations(count: int, tools: int, own: int) -> list[Conversation]:
    """tools, own: characters of the tools, and of what a demonstration has beside tools and system prompt."""
    tool = {"type": "function", "function": {"name": "look", "description": "x" * tools}}
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u" * own},
                {"role": "assistant", "content": "a"}]  # fmt: skip
    return [Conversation(messages=messages, tools=[tool])] * count


@pytest.mark.parametrize(("tools", "size"), [(500, 4), (6_000, 8), (20_000, 16)])
def test_updates_are_larger_where_demonstrations_have_more_in_common(tools: int, size: int) -> None:
    config = planned(conversations(300, tools, 1_000), seed=7)
    assert (config.per_device_train_batch_size, config.seed) == (size, 7)


def test_few_demonstrations_are_imitated_more_often() -> None:
    assert planned(conversations(30, 6_000, 1_000), 0).num_train_epochs == EPOCHS
    assert planned(conversations(2_000, 6_000, 1_000), 0).num_train_epochs == 2
