"""Scenarios from files and from past runs, and back to files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario
from trainer_server.wire.jsonl import read_jsonl, write_jsonl


def load_scenarios(path: str | Path) -> list[Scenario]:
    """Reads scenarios from a JSONL file with a scenario in each line.

    A line is a scenario (`input`, optional `id` and `metadata`), an example of a LangSmith dataset export (`inputs`,
    `outputs`, `metadata`; the outputs become `metadata["outputs"]`), a bare graph input, or a string: a user message.

    Args:
        path: The file.

    Raises:
        ConfigError: The file or a line cannot be read; the message names the line.
    """
    return list(read_jsonl(path, _scenario, what="scenario"))


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
        given = {"id": str(line["id"])} if line.get("id") else {}
        metadata = {**(line.get("metadata") or {}), "outputs": line.get("outputs")}
        return Scenario(input=line["inputs"], metadata=metadata, **given)
    if isinstance(line, dict) and "input" in line and line.keys() <= {"id", "input", "metadata"}:
        return Scenario(**{**line, "id": str(line.get("id") or ""), "metadata": line.get("metadata") or {}})
    return Scenario.of(line)
