"""Reads requests back: a model that does not see the plan does what a request asks, and must make the same calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from art_langgraph.llm.trainer_model import ToolUse, TrainerModel
from art_mcp.canonical import canonical
from art_mcp.client.connect import Server
from art_mcp.client.result import CallResult
from art_mcp.scenarios.agreement import agreement
from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.execute import StepFailed, resolve_arguments, rollout_of_its_own
from art_mcp.scenarios.lines import mentions
from art_mcp.scenarios.observe import leaves, parse_result
from art_mcp.scenarios.plan import MCPScenario, Plan

LOOKS = 2
"""Reading calls that the plan does not have and that a reader may make, at most: as many as a run may."""

RESULT = 6_000
"""Characters of a result that the reader sees."""

_SYSTEM = "You do tasks with tools. First call the right tools, then answer in a short sentence with what they gave."


class Reader:
    """Reads requests back.

    Args:
        model: Makes the calls.
        server: Executes reading calls that the plan does not have. None: nobody does.
        tools: The tools that may be called.
    """

    def __init__(self, model: TrainerModel, server: Server | None, tools: Sequence[CatalogTool]) -> None:
        self._model = model
        self._server = server
        self._reading = {tool.name for tool in tools if tool.reads}
        self._tools = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in tools
        ]

    async def disagreement(self, scenario: MCPScenario) -> str | None:
        """How the model understands a request otherwise than the plan.

        A call of the plan gives what it gave when the plan was executed. Other calls of tools that only read are
        executed, at most LOOKS: they may find the same. Any other call is a disagreement. Where the task asks for
        something, the answer must have it.

        Args:
            scenario: The scenario with the request, and the plan.

        Returns:
            What differs. None: nothing does.

        Raises:
            LLMError: The model gave no answer.
        """
        plan = scenario.plan
        needs = {need for step in plan.reference for need in step.needs}
        ends = {at for at in range(len(plan.reference)) if at not in needs}
        messages: list[Mapping[str, Any]] = [{"role": "system", "content": _SYSTEM}, *scenario.messages]
        progress: set[int] = set()
        looks = 0
        for _ in range(len(plan.reference) + LOOKS + 1):
            turn = await self._model.act(messages, self._tools)
            if not turn.calls and not ends <= progress:
                return "calls are missing"
            if not turn.calls:
                return None if all(mentions(turn.text, fact) for fact in plan.facts) else "the answer is another one"
            messages.append(turn.message)
            for call in turn.calls:
                at = _step_of(call, plan, progress)
                if at is not None:
                    progress.add(at)
                    text = plan.observations[at].text
                elif looks < LOOKS and (result := await self._look(call)) is not None:
                    looks += 1
                    progress |= _same_result(call, result, plan)
                    text = result.text
                else:
                    return "other calls are made"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text[:RESULT]})
            if ends <= progress and not plan.facts:
                return None
        return "more calls are made"

    async def _look(self, call: ToolUse) -> CallResult | None:
        """What a call gives that the plan does not have. None: it may not be made, or cannot be."""
        if self._server is None or call.arguments is None or call.tool not in self._reading:
            return None
        try:
            async with rollout_of_its_own():
                return await self._server.call(call.tool, call.arguments)
        except OSError:  # no copy of the world could be made
            return None


def _step_of(call: ToolUse, plan: Plan, progress: set[int]) -> int | None:
    """The number of the step of a plan that a call is; None: of none. Which look-up found a value does not matter: it
    is not in the request."""
    for at, step in enumerate(plan.reference):
        if at in progress or step.tool != call.tool or call.arguments is None:
            continue
        try:
            arguments = resolve_arguments(step, plan.observations)
        except StepFailed:
            continue
        if agreement(call.arguments, arguments, step.defaults) == 1.0:
            return at
    return None


def _same_result(call: ToolUse, result: CallResult, plan: Plan) -> set[int]:
    """The steps of a plan for which a call with other arguments does: those that only ask for a result, such as SQL."""
    values = [canonical(leaf) for _, leaf in leaves(parse_result(result.text, result.structured))]
    return {
        at
        for at, (step, observation) in enumerate(zip(plan.reference, plan.observations, strict=True))
        if step.by_result
        and step.tool == call.tool
        and not result.is_error
        and values == [canonical(leaf) for _, leaf in leaves(parse_result(observation.text, observation.structured))]
    }
