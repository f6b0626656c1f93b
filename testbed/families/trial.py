"""One family on a running trainer server: warm start, an agent with a tool, one GRPO step, the new version.

The agent asks for the weather of a city. Demonstrations show a call of the tool with either unit, so that a sampled
group has both, and the reward prefers one.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx
from art_examples.quickstart.server_process import trainer_server
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import SecretStr

from art_langgraph import ChatART, GRPOConfig, SFTConfig, TrainerClient, Trajectory, gather
from testbed.families.models import Family, family_model
from trainer_server.common import Connection

_CITIES = ("Oslo", "Lima")
_UNITS = ("celsius", "kelvin")
_THOUGHT = "The weather tool knows this."
_MAX_TOKENS = 80
_RUNS = 8
_POLICY = "agent"
_RANK = 16
_ENGINE_ARGS = "--max-model-len 2048"
_STEP = GRPOConfig(lr=1e-3)


@tool
def get_weather(city: str, unit: str) -> str:
    """Weather of a city."""
    return f"7 {unit}"


@dataclass(frozen=True, slots=True)
class FamilyServer:
    """A server with a family's model, and how its engine reads answers."""

    connection: Connection
    tool_parser: str | None
    reasoning_parser: str | None
    seconds: float
    """Wall time of the start."""


@contextmanager
def family_server(family: Family, home: Path, progress: Callable[[str], None]) -> Iterator[FamilyServer]:
    """Serves a family's model, as a user does, until the block is left.

    Args:
        family: The family.
        home: The server's home.
        progress: Called with each new last line of the log while the server starts.

    Raises:
        EngineError: The server did not start.
        FamilyUnavailable: The tokenizer could not be fetched.
    """
    model, started = family_model(family), time.monotonic()
    engine_args = _ENGINE_ARGS + " --enable-return-routed-experts" * family.returns_experts
    options = ["--model", str(model), "--max-rank", str(_RANK), "--kv-cache-gib", "1", "--engine-args", engine_args]
    options += ["--no-trainer-low-priority"]  # it does not wait for what else runs on a busy machine
    options += ["--tool-call-parser", family.tool_parser] if family.tool_parser else []
    with trainer_server(home, home / "server.log", progress, *options) as connection:
        headers = {"Authorization": f"Bearer {connection.api_key}"}
        (engine,) = httpx.get(f"{connection.url}/api/engines", headers=headers, timeout=30).json()["engines"]
        parsers = (engine.get("tool_parser"), engine.get("reasoning_parser"))
        yield FamilyServer(connection, *parsers, time.monotonic() - started)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a family did."""

    called: float
    """Share of the first answers whose call of the tool was read by the engine's parser."""
    called_before: float | None
    """The same of answers before the warm start; None: the weights are random."""
    thought: float | None
    """Share of the first answers whose thought was read by the engine's parser; None where the family has none."""
    finished: float | None
    """Share of the runs that ended with the demonstrated answer; None where the template takes no tool results."""
    sft_loss: tuple[float, float]
    """Of the first and of the last update of the warm start."""
    logp_gap: float
    """Mean |log-probability by the trainer - by the sampler| before the step's update, nats per token."""
    ratio_middle: tuple[float, float]
    """The 5th and the 95th percentile of trainer's / sampler's probability of a token, before the step's update."""
    rows: int
    """Rows that the step computed …"""
    completions: int
    """… for this many completions."""
    tokens: int
    """Tokens that the step computed …"""
    tokens_separate: int
    """… and that it would have computed with a row for each completion."""
    shared: bool
    """Whether completions may share rows in this architecture."""
    replayed: float
    """Share of the tokens that the step computed with the experts that vLLM chose."""
    prefix_drift: float | None
    """Share of the sampled tokens that the next prompt of their run lacks; None: no completion continues another."""
    swap: float
    """Seconds of the change to the step's version."""
    moved: float
    """Largest change of a weight by the step."""
    version: int
    """The version that the step made."""
    answered_by: tuple[int, ...]
    """The versions that answered after it."""
    seconds: float
    """Wall time, from the policy's creation to the last answer."""


def demonstrations(family: Family) -> list[dict[str, Any]]:
    """Conversations in OpenAI's format: a call of the tool for each city and unit, and an answer from each result."""
    tools = [convert_to_openai_tool(get_weather)]
    shown = []
    for city, unit in product(_CITIES, _UNITS):
        asked = {"role": "user", "content": _question(city)}
        shown.append({"messages": [asked, _call(family, city, unit)], "tools": tools})
        if family.takes_results:
            called = {**_made_call(city, unit), "weight": 0}
            result = {"role": "tool", "tool_call_id": "call", "content": f"7 {unit}"}
            answer = {"role": "assistant", "content": _answer(city, unit)}
            shown.append({"messages": [asked, called, result, answer], "tools": tools})
    return shown


def _question(city: str) -> str:
    return f"Weather in {city}?"


def _answer(city: str, unit: str) -> str:
    return f"{city} has 7 {unit}."


_ANSWERS = [_answer(city, unit) for city, unit in product(_CITIES, _UNITS)]


def _made_call(city: str, unit: str) -> dict[str, Any]:
    """The message of a call as LangChain sends it back: without its reasoning."""
    function = {"name": "get_weather", "arguments": json.dumps({"city": city, "unit": unit})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call", "type": "function", "function": function}],
    }


def _call(family: Family, city: str, unit: str) -> dict[str, Any]:
    """The demonstrated call."""
    if family.calls_as_text is None:
        made = _made_call(city, unit)
        return {**made, "reasoning_content": _THOUGHT} if family.thinks else made
    arguments = {"city": city, "unit": unit}
    keywords = ", ".join(f"{key}={json.dumps(value)}" for key, value in arguments.items())
    text = family.calls_as_text.format(name="get_weather", arguments=json.dumps(arguments), keywords=keywords)
    return {"role": "assistant", "content": text}


def _agent(family: Family, model: Any) -> Any:
    """The model with its tool; it goes on with the tool's result where the template takes one."""

    async def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent")
    if family.takes_results:
        graph.add_node("tools", ToolNode([get_weather])).add_edge("tools", "agent")
        graph.add_conditional_edges("agent", tools_condition)
    return graph.compile()


async def run_trial(family: Family, server: Connection, home: Path) -> Trial:
    """Tries a family on a server of its own.

    Args:
        family: Whose model the server serves.
        server: The server.
        home: The server's home, whose adapters are compared.
    """
    started = time.monotonic()
    bare = ChatART(policy=_POLICY, max_tokens=_MAX_TOKENS, base_url=server.url, api_key=SecretStr(server.api_key))
    model = bare.bind_tools([get_weather])
    graph = _agent(family, model)
    async with TrainerClient(server.url, server.api_key) as trainer:
        await trainer.create_policy(_POLICY, rank=_RANK)
        before = await model.abatch([_question(city) for city in _CITIES] * _RUNS) if family.weights else ()
        warm_start = SFTConfig(lr=family.lr, num_train_epochs=family.epochs, per_device_train_batch_size=8)
        warm = await trainer.sft(_POLICY, demonstrations(family), warm_start)
        if "skipped" in warm.metrics:
            raise RuntimeError(f"{family.name}: the warm start made nothing: {warm.metrics['skipped']}")
        groups = await gather(graph, [_question(city) for city in _CITIES], _RUNS, _reward, progress=False)
        runs = [run for group in groups for run in group.trajectories]
        first = await _messages(trainer, [run.completions[0].id for run in runs])
        step = await trainer.train_step(_POLICY, groups, _STEP)
        after = await gather(graph, [_question(_CITIES[0])], 2, progress=False)
    metrics = step.metrics
    if "skipped" in metrics:
        losses = f"{warm.metrics['loss_first']:.3f} to {warm.metrics['loss_last']:.3f}"
        raise RuntimeError(
            f"{family.name}: the step made nothing: {metrics['skipped']}. The warm start's loss went from {losses}, "
            f"and {sum(bool(message.get('tool_calls')) for message in first)} of {len(first)} answers had a call"
        )
    return Trial(
        called_before=_share(bool(answer.tool_calls) for answer in before) if before else None,
        called=_share(bool(message.get("tool_calls")) for message in first),
        thought=_share((message.get("reasoning") or "").strip() == _THOUGHT for message in first)
        if family.thinks
        else None,
        finished=_share(run.final_text.strip() in _ANSWERS for run in runs) if family.takes_results else None,
        sft_loss=(warm.metrics["loss_first"], warm.metrics["loss_last"]),
        logp_gap=metrics["logp_gap"],
        ratio_middle=(metrics["sampler_ratio_percentiles"]["p05"], metrics["sampler_ratio_percentiles"]["p95"]),
        rows=metrics["rows"],
        completions=sum(len(run.completions) for run in runs),
        tokens=metrics["tokens_unique"] + metrics["tokens_repeated"],
        tokens_separate=metrics["tokens_total"],
        shared=metrics["rows_shared"],
        replayed=metrics.get("experts_replayed", 0.0),
        prefix_drift=metrics["prefix_drift"],
        swap=metrics["job"]["seconds"]["swap"],
        moved=_moved(home / "policies" / _POLICY / "versions", warm.version, step.version),
        version=step.version,
        answered_by=tuple(
            {call.version or 0 for group in after for run in group.trajectories for call in run.completions}
        ),
        seconds=time.monotonic() - started,
    )


async def _messages(trainer: TrainerClient, ids: Sequence[str | None]) -> list[dict[str, Any]]:
    """The answers as the ledger has them: LangChain's messages have no thoughts."""
    rows = await trainer.completions([one for one in ids if one is not None])
    return [(rows[one].message if one in rows else None) or {} for one in ids]


def _reward(trajectory: Trajectory) -> float:
    """Whether the preferred unit was asked for."""
    calls = (trajectory.completions[0].message or {}).get("tool_calls") or ()
    return float(any(_UNITS[0] in call["function"]["arguments"] for call in calls))


def _share(outcomes: Iterable[bool]) -> float:
    return statistics.fmean(outcomes)


def _moved(versions: Path, before: int, after: int) -> float:
    """Largest difference of a weight between two versions."""
    from safetensors.numpy import load_file

    one, two = (load_file(versions / str(number) / "adapter_model.safetensors") for number in (before, after))
    return max(float(abs(one[name] - two[name]).max()) for name in one)
