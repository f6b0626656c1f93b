"""Reads requests that were written by hand, or by a model, and makes scenarios of them by executing their calls.

`NAME.jsonl` has requests of people to the server NAME in its world of seed 0, `NAME.model.jsonl` those of a language
model. Nobody who wrote them looked at the grammar of `art_mcp/scenarios/phrasing/`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from art_langgraph import Trajectory
from art_mcp import MCPScenario, Measurement, ScenarioSet, read_catalog
from art_mcp.client.connect import Server
from art_mcp.scenarios.lines import mentions
from art_mcp.scenarios.phrasing.answers import refuses
from art_mcp.scenarios.plan import Kind, Plan, Reading, Reply, Step
from art_mcp.scenarios.scenario_set import DroppedTask, drop
from art_mcp.scenarios.trials import execute
from art_mcp.scenarios.writing.proposals import AskedValue, ProposedCall
from benchmarks.servers.registry import SERVERS
from testbed import library
from trainer_server.common.jsonl import read_jsonl
from trainer_server.wire import ConfigError

FOLDER = Path(__file__).parent
SEED = 0
"""Seed of the worlds whose values the requests name."""
WRITERS = {"people": ".jsonl", "model": ".model.jsonl"}
"""Who wrote a request, and how the name of the file ends."""

_LIBRARY = replace(
    SERVERS["sqlite"],
    command=lambda: [sys.executable, library.__file__, "--db", "{world}"],
    world=lambda where, seed: library.make_library(where / "library.db", seed),
)
SERVERS_OF_REQUESTS = {**SERVERS, "library": _LIBRARY}
"""The servers of the benchmark, and the lending library of the tests."""


class WrittenRequest(BaseModel):
    """A request, and what solves it.

    Args:
        task: What somebody writes.
        calls: The calls. An argument may be a value of an earlier result, as in a `Step`.
        asks: Where the values are that the answer must have: the number of the call, and the path in its result.
        facts: Further values that the answer must have, which are a part of a line, or a count.
        by_result: Whether other arguments are right if they give the same, as of SQL.
        reply: "refusal" where the last call gives an error, or no tool does it.
        about: Names of which a refusal must mention one.
        answer: The right answer to what must be refused.
    """

    model_config = ConfigDict(extra="forbid")

    task: str = Field(min_length=1)
    calls: list[ProposedCall] = Field(default_factory=list)
    asks: list[AskedValue] = Field(default_factory=list)
    facts: list[str] = Field(default_factory=list)
    by_result: bool = False
    reply: Reply = "result"
    about: list[str] = Field(default_factory=list)
    answer: str = ""

    def scenario(self, server: str, writer: str) -> MCPScenario:
        """The scenario, which is not executed yet.

        Args:
            server: Name of the server.
            writer: Who wrote the request: one of WRITERS.
        """
        steps = [Step(tool=call.tool, arguments=call.arguments, by_result=self.by_result) for call in self.calls]
        several: Kind = "chain" if any(step.needs for step in steps) else "pair"
        kind: Kind = "impossible" if self.reply == "refusal" else several if len(steps) > 1 else "single"
        plan = Plan(
            server=server,
            kind=kind,
            reply=self.reply,
            reference=steps,
            readings=[Reading(step=value.call, path=value.path) for value in self.asks],
            about=self.about,
            answer=self.answer,
            split="foreign",
            origin=writer,
        )
        return MCPScenario.make(self.task, plan)


def read_requests(name: str) -> dict[str, list[WrittenRequest]]:
    """The requests to a server by who wrote them.

    Args:
        name: Name of the server. One that no file is of has none.

    Raises:
        ConfigError: A line is invalid. The message names it.
    """
    files = {writer: FOLDER / f"{name}{ending}" for writer, ending in WRITERS.items()}
    return {
        writer: list(read_jsonl(path, WrittenRequest.model_validate, what="request"))
        for writer, path in files.items()
        if path.exists()
    }


async def foreign_scenarios(server: Server, name: str) -> tuple[list[MCPScenario], list[DroppedTask]]:
    """Executes the calls of all requests to a server.

    Args:
        server: The server, in its world of SEED.
        name: Its name in the files.

    Returns:
        The scenarios, and records of the requests whose calls do not work or do not give what the answer needs.
    """
    requests = [(request, writer) for writer, found in read_requests(name).items() for request in found]
    drafts = [request.scenario(name, writer) for request, writer in requests]
    by_id = {draft.id: request for draft, (request, _) in zip(drafts, requests, strict=True)}
    executed, dropped = await execute(server, drafts, await read_catalog(server))
    scenarios = []
    for scenario in executed:
        request = by_id[scenario.id]
        if wrong := _wrong(request, scenario.plan):
            dropped.append(drop(scenario, "invalid", wrong))
        else:
            facts = [*scenario.plan.facts, *request.facts] if request.asks else request.facts
            scenarios.append(scenario.with_plan(facts=facts))
    return scenarios, dropped


def _wrong(request: WrittenRequest, plan: Plan) -> str | None:
    """Why a request whose calls work is none that a run can be judged by. None: it is one."""
    if request.reply == "refusal":
        fits = refuses(request.answer) and any(mentions(request.answer, name) for name in request.about)
        return None if fits else "its answer must refuse, and mention one of `about`"
    if not (request.asks or request.facts or plan.changes):
        return "it asks for nothing, and changes nothing"
    results = " ".join(observation.text for observation in plan.observations)
    unknown = [fact for fact in request.facts if not (fact.isdigit() or mentions(results, fact))]
    return f"no result has {unknown[0]!r}" if unknown else None


async def foreign_file(server: Server, name: str, where: Path) -> Path | None:
    """Writes the scenarios of all requests to a server to a file, as `specialize` takes it.

    Args:
        server: The server, in its world of SEED.
        name: Its name in the files.
        where: Directory of the file.

    Returns:
        The file. None: there are no requests to this server.

    Raises:
        ConfigError: A request does not work.
    """
    scenarios, dropped = await foreign_scenarios(server, name)
    if dropped:
        raise ConfigError(
            f"{len(dropped)} requests to {name} do not work: python -m benchmarks.wordings {name} tells why"
        )
    if not scenarios:
        return None
    ScenarioSet(scenarios).save(where / "foreign.jsonl")
    return where / "foreign.jsonl"


def foreign_rates(measurement: Measurement) -> dict[str, float | None]:
    """Success on foreign requests by who wrote them: those of WRITERS that were measured.

    Args:
        measurement: A measurement.
    """
    evaluation = measurement.sets.get("foreign")
    runs = {writer: list[Trajectory]() for writer in WRITERS}
    for run in evaluation.trajectories if evaluation else ():
        runs[MCPScenario.of_scenario(run.scenario).plan.origin].append(run)
    return {
        writer: replace(evaluation, trajectories=own).success_rate for writer, own in runs.items() if evaluation and own
    }


def summary(scenarios: Sequence[MCPScenario]) -> list[dict[str, Any]]:
    """What is looked at when requests are checked: the words, the calls, and what the answer must have."""
    return [
        {
            "task": scenario.task,
            "calls": [[step.tool, step.arguments] for step in scenario.plan.reference],
            "facts": scenario.plan.facts,
            "readings": [[reading.step, reading.path] for reading in scenario.plan.readings],
            "changes": None if scenario.plan.changes is None else [str(change) for change in scenario.plan.changes],
        }
        for scenario in scenarios
    ]
