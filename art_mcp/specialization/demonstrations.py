"""Converts references to conversations, for a warm start by SFT."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from art_mcp.scenarios.execute import StepFailed, resolved
from art_mcp.scenarios.phrasing.answers import answer_of
from art_mcp.scenarios.plan import MCPScenario, Observation, Step
from art_mcp.specialization.agent import SYSTEM
from trainer_server.wire import ConfigError, Conversation


def demonstrations(
    scenarios: Iterable[MCPScenario], tools: Sequence[BaseTool], system: str = SYSTEM
) -> list[Conversation]:
    """Converts references to conversations. Tools and system prompt are as `build_agent` sends them to the model.

    Args:
        scenarios: The scenarios. Those whose references were not executed are left out.
        tools: The tools of the agent.
        system: System prompt of the agent.

    Returns:
        One conversation for each executed scenario.
    """
    described = [convert_to_openai_tool(tool) for tool in tools]
    prompt = {"role": "system", "content": system}
    return [
        Conversation(messages=[prompt, *demonstration(scenario)], tools=described)
        for scenario in scenarios
        if scenario.plan.executed
    ]


def demonstration(scenario: MCPScenario) -> list[dict[str, Any]]:
    """Converts a reference to messages in OpenAI's format.

    The messages are those of the scenario, the tool calls with their observed results, and an answer: that of the plan,
    or else a sentence for each fact. Before the first of several calls, the assistant says which tools it needs, in
    their order, and before each further one, which it needs next: so a policy that has made one call knows from its own
    words what is left to do. Where the plan has an answer to each of several requests, the assistant gives it as soon
    as it has the result, and only then makes the next call: each value is then taken from the result above it, as in
    tasks with a single request. Other calls that only read, and need nothing of one another, are made by one message.

    Args:
        scenario: A scenario whose reference was executed.

    Raises:
        ConfigError: The reference was not executed, or a later step takes a value that the results do not have.
    """
    plan = scenario.plan
    if not plan.executed:
        raise ConfigError(f"scenario {scenario.id} was not executed: there are no results to show")
    messages: list[dict[str, Any]] = [*scenario.messages]
    answer = answer_of(scenario)
    answers = plan.answers if answer == plan.answer else []  # people may have changed the facts
    for turn in _turns(plan.reference, alone=bool(answers)):
        try:
            calls = [_call(index, plan.reference[index], plan.observations[:index]) for index in turn]
        except StepFailed as failed:  # the scenario was edited
            raise ConfigError(f"scenario {scenario.id} cannot be shown: {failed}") from None
        messages.append({"role": "assistant", "content": _said(plan.reference, turn, answers), "tool_calls": calls})
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": plan.observations[index].text}
            for index, call in zip(turn, calls, strict=True)
        ]
    return [*messages, {"role": "assistant", "content": answer}]


def _turns(steps: Sequence[Step], *, alone: bool) -> list[list[int]]:
    """The indexes of the steps, by the message that makes the calls. alone: each call has one of its own."""
    turns: list[list[int]] = []
    for index, step in enumerate(steps):
        together = turns and not alone and step.reads and all(steps[other].reads for other in turns[-1])
        if together and not set(step.needs) & set(turns[-1]):
            turns[-1].append(index)
        else:
            turns.append([index])
    return turns


def _said(steps: Sequence[Step], turn: Sequence[int], answers: Sequence[str]) -> str:
    """What the assistant says in the message that makes the calls of a turn. Empty: there is one call alone."""
    if not turn[0]:
        return f"I need {', then '.join(step.tool for step in steps)}." if len(steps) > 1 else ""
    tools = f"Next I need {', then '.join(steps[index].tool for index in turn)}."
    return f"{answers[turn[0] - 1]} {tools}" if answers else tools


def _call(index: int, step: Step, earlier: Sequence[Observation]) -> dict[str, Any]:
    """The call of a step in OpenAI's format. earlier: the results of the steps before it."""
    arguments = json.dumps(resolved(step, earlier), ensure_ascii=False)
    return {"id": f"call_{index}", "type": "function", "function": {"name": step.tool, "arguments": arguments}}
