"""Demonstrations for a warm start by SFT, and which training scenarios it shows."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from art_mcp.canonical import canonical
from art_mcp.scenarios.execute import StepFailed, resolve_arguments
from art_mcp.scenarios.phrasing.answers import answer_of
from art_mcp.scenarios.plan import MCPScenario, Observation, Step
from art_mcp.scenarios.split import combination
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
    schemas = [convert_to_openai_tool(tool) for tool in tools]
    prompt = {"role": "system", "content": system}
    return [
        Conversation(messages=[prompt, *demonstration(scenario)], tools=schemas)
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


SHARE = 0.2
"""Share of the different calls that is kept for the reinforcement learning."""
_LEAST = 2
"""Different calls of the same tools that the warm start shows at least."""
COMBINATIONS = 0.3
"""Share of the combinations of tools that is kept as a whole."""
_ASIDE, _MOST_ASIDE, _FEWEST_ASIDE = 0.1, 32, 8
"""Share of the training scenarios that is put aside for the choice of a version, how many at most, and how many at
least. Fewer tell nothing."""


def put_aside(training: Sequence[MCPScenario], seed: int) -> tuple[list[MCPScenario], list[MCPScenario]]:
    """Divides training scenarios into those to train on and selection scenarios.

    Selection scenarios tell when a warm start should end, and which version is taken. The same scenarios and the same
    seed give the same division.

    Args:
        training: All training scenarios.
        seed: Seed of the choice.

    Returns:
        The scenarios to train on, and the selection scenarios. There are none of the latter if _ASIDE of the training
        scenarios is fewer than _FEWEST_ASIDE / 2.
    """
    count = round(len(training) * _ASIDE)
    if 2 * count < _FEWEST_ASIDE:
        return list(training), []
    count = min(_MOST_ASIDE, max(_FEWEST_ASIDE, count))
    selection_ids = {scenario.id for scenario in random.Random(f"selection-{seed}").sample(list(training), count)}
    rest = [scenario for scenario in training if scenario.id not in selection_ids]
    return rest, [scenario for scenario in training if scenario.id in selection_ids]


def shown_and_kept(training: Sequence[MCPScenario], seed: int) -> tuple[list[MCPScenario], list[MCPScenario]]:
    """Divides training scenarios by their calls: those that the warm start may show, and those that it must not.

    Of the combinations of several tools, COMBINATIONS are kept, if each of their tools is in another one that is not
    kept. Of the calls of the same other tools in the same kind of task, SHARE is kept, and _LEAST are shown. Calls that
    have more than twice as many scenarios as others have on average are not kept: without them, the warm start would
    hardly show this kind of task. The same scenarios and the same seed give the same division.

    Args:
        training: The training scenarios.
        seed: Seed of the choice.

    Returns:
        The scenarios to show, and those that are kept. No calls are in both.
    """
    calls = list[str]()
    alike: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    whole = _whole({combination(scenario) for scenario in training}, seed)
    rl_calls: set[str] = set()
    for scenario in training:
        plan = scenario.plan
        calls.append(plan.calls)
        if combination(scenario) in whole:
            rl_calls.add(calls[-1])
        else:
            alike[plan.kind, *scenario.tools][calls[-1]] += 1
    debt = 0.0
    for key, different in sorted(alike.items()):
        debt += SHARE * len(different)
        rare = sorted(call for call, times in different.items() if times * len(different) <= 2 * different.total())
        count = min(int(debt), max(0, len(different) - _LEAST), len(rare))
        rl_calls.update(random.Random(f"kept-{seed}-{canonical(key)}").sample(rare, count))
        debt -= count
    visible = [scenario for scenario, its in zip(training, calls, strict=True) if its not in rl_calls]
    return visible, [scenario for scenario, its in zip(training, calls, strict=True) if its in rl_calls]


def to_train_on(
    training: Sequence[MCPScenario], imitated_ids: Collection[str], least: int, seed: int
) -> list[MCPScenario]:
    """The scenarios of the reinforcement learning: those whose calls the warm start has not imitated, and some others.

    Tools that only imitated scenarios use would be unlearned: a policy that is rewarded for one tool alone soon calls
    it for everything. So imitated scenarios are added wherever, without them, a combination of tools would have a
    smaller share than it has in the training. The same scenarios and the same seed give the same choice.

    Args:
        training: The training scenarios.
        imitated_ids: Ids of those that the warm start has imitated.
        least: Number of scenarios that were not imitated for which this is done. If there are fewer, all are returned.
        seed: Seed of the choice.
    """
    calls = {scenario.plan.calls for scenario in training if scenario.id in imitated_ids}
    fresh = [scenario for scenario in training if scenario.plan.calls not in calls]
    if len(fresh) < least:
        return list(training)
    totals = Counter(combination(scenario) for scenario in training)
    debts = {tools: len(fresh) * count / len(training) for tools, count in totals.items()}
    for scenario in fresh:
        debts[combination(scenario)] -= 1
    ids = {scenario.id for scenario in fresh}
    for scenario in random.Random(f"again-{seed}").sample(list(training), len(training)):
        if scenario.id not in ids and debts[combination(scenario)] >= 1:
            debts[combination(scenario)] -= 1
            ids.add(scenario.id)
    return [scenario for scenario in training if scenario.id in ids]


def _whole(combinations: Collection[tuple[str, ...]], seed: int) -> set[tuple[str, ...]]:
    """The combinations of several tools that are kept. Each of their tools is in another one that is not kept."""
    several = sorted(each for each in combinations if len(each) > 1)
    count = int(COMBINATIONS * len(several))
    uses = Counter(tool for each in combinations for tool in each)
    whole: set[tuple[str, ...]] = set()
    for each in random.Random(f"combinations-{seed}").sample(several, len(several)):
        if len(whole) < count and all(uses[tool] > 1 for tool in each):
            whole.add(each)
            uses.subtract(each)
    return whole
