"""Settings of a warm start, by its demonstrations."""

from __future__ import annotations

import pytest

from art_mcp import MCPScenario, WarmStart
from art_mcp.scenarios.plan import Kind, Observation, Plan, Step
from art_mcp.specialization.stages.warm_start import EPOCHS, Imitation, learning_rate, planned, varied
from trainer_server.wire import Conversation, SFTConfig


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


@pytest.mark.parametrize(("tools", "size"), [(500, 2), (6_000, 2), (10_000, 4), (40_000, 16)])
def test_updates_are_larger_where_demonstrations_have_more_in_common(tools: int, size: int) -> None:
    config = planned(conversations(300, tools, 1_000), seed=7)
    assert (config.per_device_train_batch_size, config.seed) == (size, 7)


def test_few_demonstrations_are_imitated_more_often() -> None:
    assert planned(conversations(30, 6_000, 1_000), 0).num_train_epochs == EPOCHS
    assert planned(conversations(2_000, 6_000, 1_000), 0).num_train_epochs == 2


def test_without_time_for_all_the_first_demonstrations_are_imitated() -> None:
    imitation = Imitation(conversations(40, 500, 8_000), [], planned(conversations(40, 500, 8_000), 0))
    assert len(imitation.imitated_in(None)) == len(imitation.imitated_in(3_600)) == 40
    assert 10 < len(imitation.imitated_in(120)) < 30


def test_the_learning_rate_falls_with_the_root_of_the_updates_that_there_is_time_for() -> None:
    assert (learning_rate(1), learning_rate(25), learning_rate(400)) == pytest.approx((4e-3, 4e-3, 1e-3))
    shown = conversations(40, 500, 8_000)
    imitation = Imitation(shown, [], planned(shown, 0))
    short, long = imitation.config_in(240), imitation.config_in(None)
    assert short.lr == pytest.approx(learning_rate(len(imitation.imitated_in(240)) / 2))
    assert long.lr == pytest.approx(learning_rate(40 * EPOCHS / 2))
    assert Imitation(shown, [], SFTConfig(lr=1e-4), rated=True).config_in(None).lr == 1e-4


def test_the_scenarios_that_were_shown_are_known() -> None:
    plan = Plan(reference=[Step(tool="look")], observations=[Observation(text="42")], facts=["42"])
    executed = [MCPScenario.make(f"Look, {number}.", plan) for number in range(40)]
    never = MCPScenario.make("Look.", Plan(reference=[Step(tool="look")]))
    imitation = Imitation.of(WarmStart(), [never, *executed], [], [], "s" * 100_000, seed=0)
    assert sorted(imitation.scenarios_in(None)) == sorted(one.id for one in executed)
    assert len(imitation.scenarios_in(10)) == len(imitation.imitated_in(10)) < 40


def test_demonstrations_with_other_calls_come_before_the_same_ones_in_other_words() -> None:
    def scenario(task: str, kind: Kind, *tools: str) -> MCPScenario:
        return MCPScenario.make(task, Plan(reference=[Step(tool=tool) for tool in tools], kind=kind))

    looks = [scenario(f"Look, {number}.", "single", "look") for number in range(6)]
    others = [scenario("List.", "single", "list"), scenario("Find.", "single", "find")]
    both = [scenario(f"Look and list, {number}.", "pair", "look", "list") for number in range(4)]
    ordered = varied([*looks, *others, *both])
    assert len(ordered) == 12
    assert [one.tools for one in ordered if one.plan.kind == "single"][:4] == [
        ("look",),
        ("list",),
        ("find",),
        ("look",),
    ]
    assert [one.plan.kind for one in ordered[:6]].count("pair") == 2


def test_of_the_same_tools_those_with_short_results_are_imitated_first() -> None:
    def scenario(number: int, length: int) -> MCPScenario:
        step, seen = Step(tool="look", arguments={"at": number}), Observation(text="4" * length)
        return MCPScenario.make(f"Look, {number}.", Plan(reference=[step], observations=[seen], facts=["4"]))

    lengths = (300, 2_000, 40, 9_000)
    listed = [scenario(number, length) for number, length in enumerate(lengths)]
    imitation = Imitation.of(WarmStart(), listed, [], [], "system", seed=0)
    assert imitation.scenarios_in(None) == [listed[at].id for at in (2, 0, 1, 3)]
    short = imitation.scenarios_in(2)
    assert short == imitation.scenarios_in(None)[: len(short)]
    assert len(short) < len(listed)
