"""Scenarios from files and from past runs, and back to files."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, scenario_id
from trainer_server.common.jsonl import read_jsonl, write_jsonl

_KEYS = {"id", "input", "inputs", "outputs", "metadata"}
"""Of a line that is no bare input of the graph."""
_ALIKE = 0.85
"""How alike a key must be to one of these, from 0 to 1, to be taken for a slip."""


def load_scenarios(path: str | Path) -> list[Scenario]:
    """Reads scenarios from a JSONL file with a scenario in each line.

    A line is a scenario (`input`, optional `id` and `metadata`), an example of a LangSmith dataset export (`inputs`,
    `outputs`, `metadata`; the outputs become `metadata["outputs"]`), a bare graph input, or a string: a user message.

    Args:
        path: The file.

    Raises:
        ConfigError: The file or a line cannot be read, or a line has the id of an earlier scenario with another input;
            the message names the line.
    """
    inputs: dict[str, str] = {}

    def parse(line: Any) -> Scenario:
        scenario = _scenario(line)
        task = scenario_id(scenario.input)
        if inputs.setdefault(scenario.id, task) != task:
            raise ValueError(
                f"an earlier scenario with another input has the id {scenario.id!r}, and runs of one id are compared "
                "with one another: give each task an id of its own, or none"
            )
        return scenario

    return list(read_jsonl(path, parse, what="scenario"))


def save_scenarios(path: str | Path, scenarios: Iterable[Scenario]) -> None:
    """Writes scenarios as JSONL, which `load_scenarios` reads.

    Args:
        path: The file.
        scenarios: The scenarios.
    """
    write_jsonl(path, scenarios)


def stored_scenarios(store: TrajectoryStore, **filters: Any) -> list[Scenario]:
    """The scenarios of past runs, each once, newest first.

    Args:
        store: Where the runs are.
        filters: Fields of `store.Filter`.
    """
    scenarios: dict[str, Scenario] = {}
    for trajectory in store.list(**filters):
        scenarios.setdefault(trajectory.scenario.id, trajectory.scenario)
    return list(scenarios.values())


def _scenario(line: Any) -> Scenario:
    if not isinstance(line, (dict, str)):
        raise TypeError(f"expected an object or a string, found {type(line).__name__}")
    if isinstance(line, dict) and "inputs" in line:
        metadata = {**(line.get("metadata") or {}), "outputs": line.get("outputs")}
        if metadata.get("trajectory_format") == "messages":
            raise ValueError("it is a whole trajectory: `art-langgraph import langsmith` makes scenarios of it")
        return Scenario(id=_id(line), input=line["inputs"], metadata=metadata)
    if isinstance(line, dict) and "input" in line and line.keys() <= {"id", "input", "metadata"}:
        return Scenario(id=_id(line), input=line["input"], metadata=line.get("metadata") or {})
    if isinstance(line, dict):
        _check_keys(line)
    return Scenario.of(line)


def _check_keys(line: dict[str, Any]) -> None:
    """Raises ValueError where a key looks like a misspelt one: then all of the line would be the graph's input."""
    for key in line.keys() - _KEYS:
        if similar := get_close_matches(key, _KEYS - line.keys(), n=1, cutoff=_ALIKE):
            raise ValueError(
                f"its key {key!r} looks like {similar[0]!r}, misspelt. If the graph's input has a key of that name, "
                'write the input as the value of "input"'
            )


def _id(line: dict[str, Any]) -> str:
    return "" if line.get("id") is None else str(line["id"])
