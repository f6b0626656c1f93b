"""Conversations that go on with a second task, of other tools: so a policy does not learn to repeat a call.

Where a task takes several calls, the tools that training shows together are few: of a server with two tools, only each
of them twice. From such demonstrations alone a policy learns that the next call is for the same tool as the last one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.split import combination
from trainer_server.wire import Conversation

SHARE = 0.5
"""Share of the conversations that go on, of those that may."""
_SHORT = 800
"""Characters of the results of a task, at most, if its conversation goes on: the policy has to read all of them."""


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
    made: list[int | None] = []
    for index, scenario in enumerate(scenarios):
        tools = combination(scenario)
        others = (place for place, other in enumerate(waiting) if combination(scenarios[other]) != tools)
        place = next(others, None) if index in going_on else None
        made.append(None if place is None else waiting.pop(place))
    return made


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
    return sum(len(seen.text) for seen in scenario.plan.observations)
