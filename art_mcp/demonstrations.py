"""References as conversations to imitate: what a warm start by SFT is given."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from art_mcp.agent import SYSTEM
from art_mcp.canonical import canonical
from art_mcp.execute import resolved
from art_mcp.observe import leaves, parsed
from art_mcp.scenarios import MCPScenario, Observation
from art_mcp.verify import mentions
from trainer_server.wire import Conversation

_TELLING = 80
"""Characters of a value that an answer repeats."""


def demonstrations(
    scenarios: Iterable[MCPScenario], tools: Sequence[BaseTool], system: str = SYSTEM
) -> list[Conversation]:
    """One conversation for each executed scenario: its task, the calls of its reference with what they gave, an answer.

    Tools and prompt are as `build_agent` sends them, so that what is imitated is what will be asked. Scenarios that
    nobody executed are left out: nothing is known that an answer could say.
    """
    described = [convert_to_openai_tool(tool) for tool in tools]
    return [
        Conversation(messages=_messages(one, system), tools=described)
        for one in scenarios
        if len(one.plan.observations) == len(one.plan.reference)
    ]


def _messages(scenario: MCPScenario, system: str) -> list[dict[str, object]]:
    plan = scenario.plan
    found: list[dict[str, object]] = [
        {"role": "system", "content": system},
        {"role": "user", "content": scenario.task},
    ]
    for index, (step, seen) in enumerate(zip(plan.reference, plan.observations, strict=True)):
        arguments = json.dumps(resolved(step, plan.observations[:index]), ensure_ascii=False)
        call = {"id": f"call_{index}", "type": "function", "function": {"name": step.tool, "arguments": arguments}}
        found.append({"role": "assistant", "content": "", "tool_calls": [call]})
        found.append({"role": "tool", "tool_call_id": f"call_{index}", "content": seen.text})
    found.append({"role": "assistant", "content": _answer(scenario, plan.observations[-1])})
    return found


def _answer(scenario: MCPScenario, last: Observation) -> str:
    """A sentence with the facts of the plan; where nothing was stable, with what the last call gave."""
    facts = scenario.plan.facts
    if not facts:
        values = [leaf for _, leaf in leaves(parsed(last.text, last.structured)) if not isinstance(leaf, bool)]
        texts = [one if isinstance(one, str) else canonical(one) for one in values]
        facts = [one for one in texts if 1 < len(one) <= _TELLING and not mentions(scenario.task, one)][:1]
    return f"The answer is {', '.join(facts)}." if facts else "It is done."
