"""What a warm start imitates, and its settings, by its demonstrations."""

from __future__ import annotations

from typing import Any

import pytest

from art_mcp import MCPScenario, WarmStart
from art_mcp.scenarios.plan import Kind, Observation, Plan, Step
from art_mcp.specialization.imitation import EPOCHS, LR_UPDATES, Imitation, continuations, order_by_variety, plan_config
from art_mcp.specialization.stages.warm_start import warm_start
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
    config = plan_config(conversations(300, tools, 1_000), seed=7)
    assert (config.per_device_train_batch_size, config.seed) == (size, 7)


def test_few_demonstrations_are_imitated_more_often() -> None:
    assert plan_config(conversations(30, 6_000, 1_000), 0).num_train_epochs == EPOCHS
    assert plan_config(conversations(2_000, 6_000, 1_000), 0).num_train_epochs == 2


async def test_the_server_is_told_the_time_and_takes_the_demonstrations_that_fit() -> None:
    asked: list[tuple[int, SFTConfig]] = []

    class Client:
        async def find_step(self, *_: Any) -> None:
            return None

        async def sft(self, policy: str, shown: list[Conversation], config: SFTConfig, **_: Any) -> None:
            asked.append((len(shown), config))

    client: Any = Client()
    shown = conversations(40, 500, 8_000)
    own = SFTConfig(lr=1e-4, max_seconds=30)
    for seconds, config in ((60.0, plan_config(shown, 0)), (None, plan_config(shown, 0)), (60.0, own)):
        await warm_start(client, "p", Imitation(shown, [], config), seconds=seconds, key="k", progress=False)
    (timed, free, given) = (config for _, config in asked)
    assert [count for count, _ in asked] == [40, 40, 40]
    assert (timed.max_seconds, timed.fit_to_time, timed.lr_updates) == (60.0, True, LR_UPDATES)
    assert (free.max_seconds, free.fit_to_time, free.lr_updates) == (None, False, LR_UPDATES)
    assert given == own


def test_a_learning_rate_or_passes_that_are_asked_for_change_nothing_else() -> None:
    plan = Plan(reference=[Step(tool="look")], observations=[Observation(text="42")], facts=["42"])
    executed = [MCPScenario.make(f"Look, {number}.", plan) for number in range(40)]
    asked = (WarmStart(), WarmStart(lr=1e-4), WarmStart(epochs=1), WarmStart(config=SFTConfig(lr=1e-5)))
    plain, slow, once, own = (Imitation.of(each, executed, [], [], "s", seed=4).config for each in asked)
    assert slow == plain.model_copy(update={"lr": 1e-4, "lr_updates": None})
    assert once == plain.model_copy(update={"num_train_epochs": 1})
    assert own == SFTConfig(lr=1e-5)


def test_the_scenarios_that_were_shown_are_known() -> None:
    plan = Plan(reference=[Step(tool="look")], observations=[Observation(text="42")], facts=["42"])
    executed = [MCPScenario.make(f"Look, {number}.", plan) for number in range(40)]
    never = MCPScenario.make("Look.", Plan(reference=[Step(tool="look")]))
    imitation = Imitation.of(WarmStart(), [never, *executed], [], [], "s" * 100_000, seed=0)
    assert sorted(imitation.imitated_ids({})) == sorted(one.id for one in executed)
    assert imitation.imitated_ids({"imitated": [0, 3]}) == [imitation.scenarios[at][0].id for at in (0, 3)]


def test_each_scenario_is_shown_again_with_other_values_after_all_were_shown() -> None:
    def scenario(name: str) -> MCPScenario:
        seen = Observation(text=f"The owner of {name} is Wilhelmina.")
        plan = Plan(reference=[Step(tool="look", arguments={"name": name})], observations=[seen], facts=["Wilhelmina"])
        return MCPScenario.make(f"Who owns {name}?", plan)

    imitation = Imitation.of(WarmStart(), [scenario("marigold"), scenario("buttercup")], [], [], "system", seed=0)
    asked = [str(conversation.messages[1]["content"]) for conversation in imitation.conversations]
    assert sorted(asked[:2]) == ["Who owns buttercup?", "Who owns marigold?"]
    assert len(set(asked)) == 4
    assert [one.id for (one,) in imitation.scenarios] == imitation.imitated_ids({}) * 2
    assert imitation.imitated_ids({"imitated": [1, 2, 3]}) == [imitation.scenarios[at][0].id for at in (1, 0)]


def test_some_conversations_go_on_with_a_task_of_another_tool() -> None:
    def scenario(tool: str, number: int) -> MCPScenario:
        step, seen = Step(tool=tool, arguments={"at": number}), Observation(text=f"It is {number + 1}.")
        return MCPScenario.make(f"{tool}, {number}?", Plan(reference=[step], observations=[seen], facts=["It"]))

    executed = [scenario(tool, number) for tool in ("look", "list") for number in range(300, 310)]
    imitation = Imitation.of(WarmStart(), executed, [], [], "system", seed=0)
    longer = [at for at, shown in enumerate(imitation.scenarios) if len(shown) == 2]
    assert 5 <= len(longer) <= 10
    assert len(imitation.conversations) == len(imitation.scenarios) == 40 - len(longer)
    for at in longer:
        first, second = imitation.scenarios[at]
        assert first.tools != second.tools
        messages = imitation.conversations[at].messages
        assert [message["role"] for message in messages] == ["system", *["user", "assistant", "tool", "assistant"] * 2]
        assert [message["tool_calls"][0]["id"] for message in messages if "tool_calls" in message] == [
            "call_0",
            "call_1",
        ]
        assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ["call_0", "call_1"]
        assert len(imitation.conversations[at].answers("all")) == 4
        assert imitation.imitated_ids({"imitated": [at]}) == [first.id, second.id]
    shown = [one.id for scenarios in imitation.scenarios for one in scenarios]
    assert sorted(shown) == sorted([one.id for one in executed] * 2), "each is shown twice"


def test_conversations_with_long_results_do_not_go_on() -> None:
    def scenario(tool: str, length: int) -> MCPScenario:
        return MCPScenario.make(tool, Plan(reference=[Step(tool=tool)], observations=[Observation(text="4" * length)]))

    assert continuations([scenario("look", 900), scenario("list", 900)] * 4, seed=0) == [None] * 8


def test_demonstrations_with_other_calls_come_before_the_same_ones_in_other_words() -> None:
    def scenario(task: str, kind: Kind, *tools: str) -> MCPScenario:
        return MCPScenario.make(task, Plan(reference=[Step(tool=tool) for tool in tools], kind=kind))

    looks = [scenario(f"Look, {number}.", "single", "look") for number in range(6)]
    others = [scenario("List.", "single", "list"), scenario("Find.", "single", "find")]
    both = [scenario(f"Look and list, {number}.", "pair", "look", "list") for number in range(4)]
    ordered = order_by_variety([*looks, *others, *both])
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
    assert imitation.imitated_ids({}) == [listed[at].id for at in (2, 0, 1, 3)]
