"""Settings of a warm start, by its demonstrations."""

from __future__ import annotations

import pytest

from art_mcp import MCPScenario, WarmStart
from art_mcp.scenarios.plan import Observation, Plan, Step
from art_mcp.specialization.stages.warm_start import EPOCHS, Imitation, planned
from trainer_server.wire import Conversation


def conversations(count: int, tools: int, own: int) -> list[Conversation]:
    """tools, own: characters of the tools, and of what a demonstration has beside tools and system prompt."""
    tool = {"type": "function", "function": {"name": "look", "description": "x" * tools}}
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u" * own},
                {"role": "assistant", "content": "a"}]  # fmt: skip
    return [Conversation(messages=messages, tools=[tool])] * count


def test_what_was_said_before_a_follow_up_is_not_imitated() -> None:
    plan = Plan(reference=[Step(tool="look")], observations=[Observation(text="42")], facts=["42"], kind="follow_up")
    scenario = MCPScenario.make("And the next?", plan, history=[("What is the first?", "It is 41.")])
    imitation = Imitation.of(WarmStart(), [scenario], [scenario], [], "system", seed=0)
    for conversation in (*imitation.conversations, *imitation.validation):
        assert [message.get("weight") for message in conversation.messages if message["role"] == "assistant"] == [
            0, None, None,
        ]  # fmt: skip
        assert len(conversation.answers("all")) == 2


@pytest.mark.parametrize(("tools", "size"), [(500, 4), (6_000, 4), (10_000, 8), (40_000, 16)])
def test_updates_are_larger_where_demonstrations_have_more_in_common(tools: int, size: int) -> None:
    config = planned(conversations(300, tools, 1_000), seed=7)
    assert (config.per_device_train_batch_size, config.seed) == (size, 7)


def test_few_demonstrations_are_imitated_more_often() -> None:
    assert planned(conversations(30, 6_000, 1_000), 0).num_train_epochs == EPOCHS
    assert planned(conversations(2_000, 6_000, 1_000), 0).num_train_epochs == 2


def test_without_time_for_two_passes_the_longest_demonstrations_are_left_out() -> None:
    long = conversations(10, 500, 8_000)
    imitation = Imitation([*conversations(30, 500, 400), *long], [], planned(long, 0))
    assert imitation.imitated_in(None) == imitation.conversations
    assert imitation.imitated_in(3_600) == imitation.conversations
    assert imitation.imitated_in(60) == imitation.conversations[:30]
    pairs = [one.model_copy(update={"messages": one.messages * 2}) for one in long]
    both = Imitation([*conversations(30, 500, 400), *pairs], [], planned(long, 0))
    assert both.imitated_in(60) == both.conversations, "they are long because they have more calls"
    few = Imitation(long, [], planned(long, 0))
    assert few.imitated_in(1) == long
