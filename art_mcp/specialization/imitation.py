"""What a warm start imitates: demonstrations in their order, of which some go on with a second task, of other tools.

Where a task takes several calls, the tools that training shows together are few: of a server with two tools, only each
of them twice. From such demonstrations alone a policy learns that the next call is for the same tool as the last one.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.tools import BaseTool

from art_langgraph.client.demonstrations import load_conversations
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.split import combination
from art_mcp.specialization.augmentation import Renamer
from art_mcp.specialization.demonstrations import demonstrations
from art_mcp.specialization.settings import WarmStart
from trainer_server.wire import Conversation, SFTConfig

RATE = 2e-3
"""Learning rate of a warm start of LR_UPDATES updates. It falls with the root of their number: at a rate that is best
for 50, those after some hundred unlearn to copy values that they have not seen (docs/benchmarks/imitation.md)."""
LR_UPDATES = 100
"""Updates of a warm start whose learning rate is RATE."""
UPDATES = 160
"""Optimizer updates that a warm start is planned for, if that is between 2 and EPOCHS passes."""
EPOCHS = 6
"""Passes over the demonstrations at most."""
LONGEST = 32_768
"""Tokens of a demonstration at most: tools of a large server alone may take thousands. The engine's context is the real
limit: a longer one cannot be rendered."""
PATIENCE = 3
"""Measurements of the held-out loss without a new least one, after which a warm start ends."""
_SIZES = (2, 4, 8, 16)
"""Demonstrations of an update. Where the trainer computes what they have in common, the tools and the system prompt,
forward in each, the size is the least at which that is less than half of the work. A token of tools has about twice as
many characters as others. Of the same demonstrations, small updates teach more than large ones
(docs/benchmarks/imitation.md)."""


SHARE = 0.5
"""Share of the conversations that go on, of those that may."""
_SHORT = 800
"""Characters of the results of a task, at most, if its conversation goes on: the policy has to read all of them."""


@dataclass(frozen=True, slots=True)
class Imitation:
    """What a warm start imitates.

    Args:
        conversations: The demonstrations, those first that teach most in their time.
        validation: Demonstrations of which the loss is measured. Empty: none is.
        config: Settings of the SFT.
        scenarios: The scenarios whose references each conversation shows, in the order of the conversations. Empty:
            they are a user's own.
    """

    conversations: list[Conversation]
    validation: list[Conversation]
    config: SFTConfig
    scenarios: list[tuple[MCPScenario, ...]] = field(default_factory=list)

    def imitated_ids(self, metrics: Mapping[str, Any]) -> list[str]:
        """Ids of the scenarios that were imitated: all of them, or those for which there was time.

        Args:
            metrics: Of the warm start.
        """
        if not self.scenarios or "skipped" in metrics:
            return []
        indexes = metrics.get("imitated", range(len(self.scenarios)))
        return list(dict.fromkeys(scenario.id for index in indexes for scenario in self.scenarios[index]))

    @classmethod
    def of(
        cls,
        settings: WarmStart,
        training: Sequence[MCPScenario],
        selection: Sequence[MCPScenario],
        tools: Sequence[BaseTool],
        system: str,
        seed: int,
        held_out: Sequence[MCPScenario] = (),
    ) -> Imitation:
        """The demonstrations and the settings of a warm start.

        Args:
            settings: What was asked for.
            training: The scenarios whose references are imitated, unless the settings name conversations.
            selection: The scenarios on whose references the loss is measured then.
            tools: The tools of the agent.
            system: Its system prompt.
            seed: Seed of the order, unless the settings have their own.
            held_out: Held-out scenarios, whose values no demonstration may have.
        """
        if settings.conversations is not None:
            conversations = load_conversations(settings.conversations)
            validation: list[Conversation] = []
            sources: list[tuple[MCPScenario, ...]] = []
        else:
            usable = [scenario for scenario in order_by_variety(training) if scenario.plan.executed]
            twice = Renamer(tools, held_out, seed).rename([*usable, *usable])
            alone = [_answers_alone(conversation) for conversation in demonstrations(twice, tools, system)]
            conversations, sources = _in_conversations(usable, alone, seed)
            validation = [_answers_alone(conversation) for conversation in demonstrations(selection, tools, system)]
        return cls(
            conversations,
            validation,
            settings.config or _apply_settings(settings, plan_config(conversations, seed)),
            sources,
        )


def _in_conversations(
    scenarios: Sequence[MCPScenario], alone: Sequence[Conversation], seed: int
) -> tuple[list[Conversation], list[tuple[MCPScenario, ...]]]:
    """The demonstrations of scenarios, of which some follow on others in one conversation.

    Args:
        scenarios: The scenarios.
        alone: Demonstrations of all of them, and then of all of them again, with other values.
        seed: Seed of which follow on which.

    Returns:
        The conversations, those first that show a scenario for the first time, and the scenarios of each.
    """
    following = continuations(scenarios, seed)
    conversations, sources = list[Conversation](), list[tuple[MCPScenario, ...]]()
    for scenario, first, index in zip(scenarios, alone, following, strict=False):
        conversations.append(first if index is None else join_conversations(first, alone[len(scenarios) + index]))
        sources.append((scenario,) if index is None else (scenario, scenarios[index]))
    for index in sorted(set(range(len(scenarios))).difference(following)):
        conversations.append(alone[len(scenarios) + index])
        sources.append((scenarios[index],))
    return conversations, sources


def _answers_alone(demonstration: Conversation) -> Conversation:
    """The demonstration without a loss on what the assistant said before the last message of the user: in a follow-up
    that is history, which was answered without the calls that led to it."""
    messages = demonstration.messages
    task_at = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=0)
    messages = [
        {**message, "weight": 0} if message["role"] == "assistant" and at < task_at else message
        for at, message in enumerate(messages)
    ]
    return demonstration.model_copy(update={"messages": messages})


def order_by_variety(training: Sequence[MCPScenario]) -> list[MCPScenario]:
    """Orders scenarios so that the first ones teach most in their time. However many are taken, each kind of task and
    each combination of tools has its share, and at least one, and of these all different calls come once before any
    comes twice, those with short results first.

    Args:
        training: The scenarios.
    """
    seen_calls: Counter[str] = Counter()
    alike: defaultdict[tuple[str, ...], list[tuple[int, int, int]]] = defaultdict(list)
    for index, scenario in enumerate(training):
        plan = scenario.plan
        length = sum(len(observation.text) for observation in plan.observations)
        alike[plan.kind, *combination(scenario)].append((seen_calls[plan.calls], length, index))
        seen_calls[plan.calls] += 1
    places = [
        (place / len(group), index) for group in alike.values() for place, (*_, index) in enumerate(sorted(group))
    ]
    return [training[index] for _, index in sorted(places)]


def _apply_settings(settings: WarmStart, config: SFTConfig) -> SFTConfig:
    """The configuration with what was asked for."""
    update: dict[str, Any] = {}
    if settings.lr is not None:
        update |= {"lr": settings.lr, "lr_updates": None}
    if settings.epochs is not None:
        update["num_train_epochs"] = settings.epochs
    return config.model_copy(update=update)


def plan_config(conversations: Sequence[Conversation], seed: int) -> SFTConfig:
    """Settings for demonstrations: updates of more demonstrations where tools and system prompt are long.

    Args:
        conversations: The demonstrations.
        seed: Seed of their order.
    """
    if not conversations:
        return SFTConfig(lr=RATE, lr_updates=LR_UPDATES, seed=seed)
    prefix_length = len(json.dumps(conversations[0].tools)) + len(str(conversations[0].messages[0].get("content")))
    own = statistics.fmean(len(json.dumps(conversation.messages[1:])) for conversation in conversations)
    size = next((size for size in _SIZES if prefix_length / size <= 4 * own), _SIZES[-1])
    epochs = math.ceil(UPDATES * size / len(conversations))
    return SFTConfig(
        lr=RATE,
        lr_updates=LR_UPDATES,
        num_train_epochs=min(EPOCHS, max(2, epochs)),
        per_device_train_batch_size=size,
        detach_prefix="context",
        max_length=LONGEST,
        patience=PATIENCE,
        seed=seed,
    )


def continuations(scenarios: Sequence[MCPScenario], seed: int) -> list[int | None]:
    """Which task follows on which.

    Args:
        scenarios: The scenarios, one for each conversation.
        seed: Seed of the choice.

    Returns:
        For each scenario the index of another one, of other tools, that its conversation goes on with; None: it ends.
        No index comes twice.
    """
    rng = random.Random(f"continued-{seed}")
    short = [index for index, scenario in enumerate(scenarios) if _length(scenario) <= _SHORT]
    waiting = rng.sample(short, len(short))
    going_on = set(rng.sample(short, round(SHARE * len(short))))
    following: list[int | None] = []
    for index, scenario in enumerate(scenarios):
        tools = combination(scenario)
        others = (place for place, other in enumerate(waiting) if combination(scenarios[other]) != tools)
        place = next(others, None) if index in going_on else None
        following.append(None if place is None else waiting.pop(place))
    return following


def join_conversations(first: Conversation, second: Conversation) -> Conversation:
    """A conversation that goes on with another one of the same tools and system prompt.

    Args:
        first: The conversation that comes first. It begins with the system prompt.
        second: The one that follows, without its system prompt.
    """
    calls = sum(len(message.get("tool_calls") or ()) for message in first.messages)
    later = [_with_ids(message, calls) for message in second.messages[1:]]
    return first.model_copy(update={"messages": [*first.messages, *later]})


def _with_ids(message: dict[str, Any], calls: int) -> dict[str, Any]:
    """The message with the ids that its calls have after so many others."""
    if message.get("tool_calls"):
        return {**message, "tool_calls": [{**call, "id": _id(call["id"], calls)} for call in message["tool_calls"]]}
    return {**message, "tool_call_id": _id(message["tool_call_id"], calls)} if "tool_call_id" in message else message


def _id(own: str, calls: int) -> str:
    name, _, number = own.rpartition("_")
    return f"{name}_{int(number) + calls}"


def _length(scenario: MCPScenario) -> int:
    """Characters of a scenario's results."""
    return sum(len(observation.text) for observation in scenario.plan.observations)
