"""Converts references to conversations, for a warm start by SFT."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.execute import StepFailed, resolved
from art_mcp.scenarios.lines import lines
from art_mcp.scenarios.mentions import mentions
from art_mcp.scenarios.observe import leaves, parsed, picked
from art_mcp.scenarios.phrasing.answers import DONE, answer
from art_mcp.scenarios.phrasing.questions import Question
from art_mcp.scenarios.plan import MCPScenario, Observation, Step
from art_mcp.specialization.agent import SYSTEM
from trainer_server.wire import ConfigError, Conversation

_TELLING = 80
"""Maximum number of characters of a value that an answer repeats."""


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
    or else a sentence for each fact. Calls that only read, and need nothing of one another, are made by one message.
    Before the first of several calls, the assistant says which tools it needs, in their order: so a policy that has
    made one call knows from its own words what is left to do.

    Args:
        scenario: A scenario whose reference was executed.

    Raises:
        ConfigError: The reference was not executed, or a later step takes a value that the results do not have.
    """
    plan = scenario.plan
    if not plan.executed:
        raise ConfigError(f"scenario {scenario.id} was not executed: there are no results to show")
    messages: list[dict[str, Any]] = [*scenario.messages]
    for turn in _turns(plan.reference):
        try:
            calls = [_call(index, plan.reference[index], plan.observations[:index]) for index in turn]
        except StepFailed as failed:  # the scenario was edited
            raise ConfigError(f"scenario {scenario.id} cannot be shown: {failed}") from None
        said = "" if len(messages) > len(scenario.messages) else _plan(plan.reference)
        messages.append({"role": "assistant", "content": said, "tool_calls": calls})
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": plan.observations[index].text}
            for index, call in zip(turn, calls, strict=True)
        ]
    return [*messages, {"role": "assistant", "content": _answer(scenario)}]


def _turns(steps: Sequence[Step]) -> list[list[int]]:
    """The indexes of the steps, by the message that makes the calls. Calls that only read, and need nothing of one
    another, are made by one message."""
    turns: list[list[int]] = []
    for index, step in enumerate(steps):
        together = turns and step.reads and all(steps[other].reads for other in turns[-1])
        if together and not set(step.needs) & set(turns[-1]):
            turns[-1].append(index)
        else:
            turns.append([index])
    return turns


def _plan(steps: Sequence[Step]) -> str:
    """What the assistant says before its first call: the tools that it needs. Empty: there is one call alone."""
    return f"I need {', then '.join(step.tool for step in steps)}." if len(steps) > 1 else ""


def _call(index: int, step: Step, earlier: Sequence[Observation]) -> dict[str, Any]:
    """The call of a step in OpenAI's format. earlier: the results of the steps before it."""
    arguments = json.dumps(resolved(step, earlier), ensure_ascii=False)
    return {"id": f"call_{index}", "type": "function", "function": {"name": step.tool, "arguments": arguments}}


def _answer(scenario: MCPScenario) -> str:
    """The answer of the plan. If it has none, or people have changed the facts: a sentence with the facts, or with a
    value of the last result if there are none."""
    plan = scenario.plan
    if plan.answer and all(mentions(plan.answer, fact) for fact in plan.facts):
        return plan.answer
    if plan.reply == "refusal":
        return f"I cannot do that{f': there is no {plan.about[0]}' if plan.about else ''}."
    if plan.reply == "talk":
        return f"I can help with {', '.join(plan.about)}." if plan.about else "You are welcome."
    told = [_said(fact, plan.observations) for fact in plan.facts]
    for reading in plan.readings:
        seen = plan.observations[reading.step]
        value = picked(seen.text, seen.structured, reading.path)
        told.append(_said(value if isinstance(value, str) else canonical(value), [seen]))
    if not told and plan.asks:
        last = plan.observations[-1]
        values = [leaf for _, leaf in leaves(parsed(last.text, last.structured)) if not isinstance(leaf, bool)]
        texts = [value if isinstance(value, str) else canonical(value) for value in values]
        new = [text for text in texts if 1 < len(text) <= _TELLING and not mentions(scenario.task, text)]
        told = [_said(text, [last]) for text in new[:1]]
    return " ".join(told) or DONE


def _said(value: str, observations: Sequence[Observation]) -> str:
    """A sentence with a value, and with its key in the results if there is one."""
    for seen in observations:
        whole = parsed(seen.text, seen.structured)
        if isinstance(whole, str):
            keys = [line.key for line in lines(whole) if line.value == value and not line.tagged]
        else:
            found = [path for path, leaf in leaves(whole) if leaf == value or canonical(leaf) == value]
            keys = [str(key) for path in found for key in path[-1:] if isinstance(key, str)]
        if keys and words(keys[0]):
            return answer(Question("leaf", " ".join(words(keys[0])), value))
    return answer(Question("value", "", value))
