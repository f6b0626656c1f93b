"""A scenario's reference as a conversation: what an agent that solves it would have said. For warm starts."""

from __future__ import annotations

import json
from typing import Any

from art_mcp.execute import StepFailed, resolved
from art_mcp.result import CallResult
from art_mcp.scenarios import MCPScenario
from trainer_server.wire import ConfigError

ANSWER = 400
"""Characters of a result that an answer repeats where there are no facts."""


def demonstration(scenario: MCPScenario) -> list[dict[str, Any]]:
    """Messages in OpenAI's form: the task, a tool call and its result for each step, and an answer with all facts.

    The results are those observed when the reference was executed. Raises ConfigError for one that was not,
    or whose results lack what its steps take.
    """
    plan = scenario.plan
    if len(plan.observations) != len(plan.reference):
        raise ConfigError(f"scenario {scenario.id} was not executed: there are no results to show")
    results = [CallResult(one.text, one.structured) for one in plan.observations]
    messages: list[dict[str, Any]] = [{"role": "user", "content": scenario.task}]
    for index, step in enumerate(plan.reference):
        try:
            arguments = json.dumps(resolved(step, results[:index]), ensure_ascii=False)
        except StepFailed as failed:  # somebody has edited it
            raise ConfigError(f"scenario {scenario.id} cannot be shown: {failed}") from None
        call = {"id": f"call_{index}", "type": "function", "function": {"name": step.tool, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": results[index].text})
    answer = ", ".join(plan.facts) if plan.facts else results[-1].text.strip()[:ANSWER]
    return [*messages, {"role": "assistant", "content": answer}]
