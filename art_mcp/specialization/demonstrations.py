"""References as conversations to imitate: what a warm start by SFT is given."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from art_mcp.canonical import canonical
from art_mcp.scenarios.execute import StepFailed, resolved
from art_mcp.scenarios.observe import leaves, parsed
from art_mcp.scenarios.plan import MCPScenario, Observation
from art_mcp.specialization.agent import SYSTEM
from art_mcp.specialization.verify import mentions
from trainer_server.wire import ConfigError, Conversation

_TELLING = 80
"""Characters of a value that an answer repeats."""


def demonstrations(
    scenarios: Iterable[MCPScenario], tools: Sequence[BaseTool], system: str = SYSTEM
) -> list[Conversation]:
    """References as conversations, with tools and prompt as `build_agent` sends them, so that what is imitated is what
    the model will be asked.

    Args:
        scenarios: Their references. Scenarios that were not executed are left out.
        tools: The tools of the agent.
        system: System prompt of the agent.
    """
    described = [convert_to_openai_tool(tool) for tool in tools]
    prompt = {"role": "system", "content": system}
    executed = (one for one in scenarios if len(one.plan.observations) == len(one.plan.reference))
    return [Conversation(messages=[prompt, *demonstration(one)], tools=described) for one in executed]


def demonstration(scenario: MCPScenario) -> list[dict[str, Any]]:
    """Messages in OpenAI's form: the task, a tool call and its result for each step, and an answer with all facts.

    Args:
        scenario: One whose reference was executed. The results are those that were observed then.

    Raises:
        ConfigError: The reference was not executed, or its results lack what later steps take.
    """
    plan = scenario.plan
    if len(plan.observations) != len(plan.reference):
        raise ConfigError(f"scenario {scenario.id} was not executed: there are no results to show")
    messages: list[dict[str, Any]] = [{"role": "user", "content": scenario.task}]
    for index, (step, seen) in enumerate(zip(plan.reference, plan.observations, strict=True)):
        try:
            arguments = json.dumps(resolved(step, plan.observations[:index]), ensure_ascii=False)
        except StepFailed as failed:  # somebody has edited it
            raise ConfigError(f"scenario {scenario.id} cannot be shown: {failed}") from None
        call = {"id": f"call_{index}", "type": "function", "function": {"name": step.tool, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{index}", "content": seen.text})
    return [*messages, {"role": "assistant", "content": _answer(scenario, plan.observations[-1])}]


def _answer(scenario: MCPScenario, last: Observation) -> str:
    """A sentence with the facts of the plan; where nothing was stable, with what the last call gave."""
    facts = scenario.plan.facts
    if not facts:
        values = [leaf for _, leaf in leaves(parsed(last.text, last.structured)) if not isinstance(leaf, bool)]
        texts = [one if isinstance(one, str) else canonical(one) for one in values]
        facts = [one for one in texts if 1 < len(one) <= _TELLING and not mentions(scenario.task, one)][:1]
    return f"The answer is {', '.join(facts)}." if facts else "It is done."
