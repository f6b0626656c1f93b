"""Converts references to conversations, for a warm start by SFT."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from art_mcp.scenarios.execute import StepFailed, resolve_arguments
from art_mcp.scenarios.phrasing.answers import answer_of
from art_mcp.scenarios.plan import MCPScenario, Observation, Step
from art_mcp.specialization.settings import SYSTEM
from trainer_server.wire import ConfigError, Conversation


def demonstrations(
    scenarios: Iterable[MCPScenario], tools: Sequence[BaseTool], system: str = SYSTEM
) -> list[Conversation]:
    """Converts references to conversations. Tools and system prompt are as `build_agent` sends them to the model.

    Args:
        scenarios: The scenarios. Those whose references cannot be shown are left out: `Plan.executed`.
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
    or else a sentence for each fact. Where the plan has an answer to each of several requests, the assistant repeats a
    request before it makes the call for it, and gives the answer before it repeats the next one: so each call follows
    the words that ask for it, and each value is taken from the result above it, as in tasks with a single request.
    Before other calls, if there are several, the assistant says which tools it needs, in their order, and before each
    further message with calls, which it needs next: so a policy that has made one call knows from its own words what is
    left to do. Those that only read, and need nothing of one another, are made by one message.

    Args:
        scenario: A scenario whose reference was executed.

    Raises:
        ConfigError: The reference was not executed, or a later step or the answer takes a value that the results do
            not have.
    """
    plan = scenario.plan
    if not plan.executed:
        raise ConfigError(f"scenario {scenario.id} cannot be shown: it was not executed, or its results were cut")
    messages: list[dict[str, Any]] = [*scenario.messages]
    answer = answer_of(scenario)
    requests = _requests(scenario) if answer == plan.answer else []  # people may have changed the facts
    for turn in _turns(plan.reference, alone=bool(requests)):
        try:
            calls = [_call(index, plan.reference[index], plan.observations[:index]) for index in turn]
        except StepFailed as failed:  # the scenario was edited
            raise ConfigError(f"scenario {scenario.id} cannot be shown: {failed}") from None
        preamble = (
            _request_preamble(requests, plan.answers, turn[0]) if requests else _calls_preamble(plan.reference, turn)
        )
        messages.append({"role": "assistant", "content": preamble, "tool_calls": calls})
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


def _requests(scenario: MCPScenario) -> list[str]:
    """The words of each of several requests. Empty: they are not known, or people or a model have changed the text."""
    text = scenario.task.casefold()
    requests = scenario.plan.requests
    return requests if all(request.casefold() in text for request in requests) else []


def _request_preamble(requests: Sequence[str], answers: Sequence[str], at: int) -> str:
    """What the assistant says in the message with the call for a request. at: its index."""
    return f"{answers[at - 1]} Next: {requests[at]}" if at else f"First: {requests[at]}"


def _calls_preamble(steps: Sequence[Step], turn: Sequence[int]) -> str:
    """What the assistant says in the message that makes other calls. Empty: there is one call alone."""
    if not turn[0]:
        return f"I need {', then '.join(step.tool for step in steps)}." if len(steps) > 1 else ""
    return f"Next I need {', then '.join(steps[index].tool for index in turn)}."


def _call(index: int, step: Step, earlier: Sequence[Observation]) -> dict[str, Any]:
    """The call of a step in OpenAI's format. earlier: the results of the steps before it."""
    arguments = json.dumps(resolve_arguments(step, earlier), ensure_ascii=False)
    return {"id": f"call_{index}", "type": "function", "function": {"name": step.tool, "arguments": arguments}}
