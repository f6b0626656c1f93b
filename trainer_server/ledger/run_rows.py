"""Rows of the list of runs, and what each source says of a run: registrations, rewards, traces, the ledger, steps.

The list is made of what is recorded elsewhere, so that a page of it is one query. It lies beside the registrations.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from typing import Any

from trainer_server.common.jsonl import to_json
from trainer_server.ledger.books import Connection, words_of
from trainer_server.wire import NAME_PATTERN, RolloutScenario, RolloutSpec, RunTrace
from trainer_server.wire.numbers import MOST_REWARD
from trainer_server.wire.text import storable, writable

_TEXT = 600
"""Characters of a run that a search looks at: the beginning of its task and of its answer."""


def row_of(db: Connection, run_id: str, start_time: float | None = None) -> int:
    """The number of a run's row, which is made where there is none, and its time of change, which is now.

    Args:
        db: A connection in a transaction.
        run_id: Id of the rollout.
        start_time: When it began, if that is known. The earliest time counts.
    """
    now = time.time()
    query = (
        "INSERT INTO runs (id, started, changed) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "changed = excluded.changed, started = CASE WHEN excluded.started < runs.started THEN excluded.started "
        "ELSE runs.started END RETURNING number"
    )
    began = now if start_time is None else start_time
    return int(db.execute(query, (writable(run_id), began, now)).fetchone()[0])


def change(db: Connection, number: int, **columns: Any) -> None:
    """Sets columns of a run."""
    names = ", ".join(f"{name} = ?" for name in columns)
    db.execute(f"UPDATE runs SET {names} WHERE number = ?", (*columns.values(), number))


def note_spec(db: Connection, run_id: str, spec: RolloutSpec) -> None:
    """A run was registered, or its registration was changed."""
    number = row_of(db, run_id)
    change(db, number, evaluation=int(spec.evaluation))
    if spec.scenario is not None:
        note_scenario(db, number, spec.scenario)


def note_reward(db: Connection, run_id: str, reward: float, source: str) -> None:
    """A run was given a reward."""
    change(db, row_of(db, run_id), reward=reward, rewarded_by=writable(source))


def note_scenario(db: Connection, number: int, scenario: RolloutScenario, answer: str = "") -> None:
    """The task of a run became known."""
    if scenario.id:
        change(db, number, scenario=writable(scenario.id))
    task = scenario.input if isinstance(scenario.input, str) else to_json(scenario.input)
    note_text(db, number, f"{task[:_TEXT]}\n{answer[:_TEXT]}" if scenario.input is not None else answer[:_TEXT])


def note_text(db: Connection, number: int, text: str, *, only_first: bool = False) -> None:
    """What a search looks at. only_first: what is known already stays."""
    exists = db.execute("SELECT 1 FROM run_texts WHERE rowid = ?", (number,)).fetchone()
    if text.strip() and not (exists and only_first):
        db.execute("DELETE FROM run_texts WHERE rowid = ?", (number,))
        words = " ".join(word for word, _ in words_of(writable(text)))
        db.execute("INSERT INTO run_texts (rowid, text) VALUES (?, ?)", (number, words))


def note_version(db: Connection, number: int, policy: str, version: int, *, recorded: bool) -> None:
    """A version of a policy answered in a run. The first one is in the row, all are in a table of their own.

    recorded: whether the ledger has it; else a client reported it, which decides no deletion.
    """
    insert = (
        "INSERT INTO run_versions (run, policy, version, recorded) VALUES (?, ?, ?, ?) ON CONFLICT (run, policy, "
        "version) DO UPDATE SET recorded = 1 WHERE excluded.recorded = 1 AND run_versions.recorded = 0"
    )
    db.execute(insert, (number, policy, version, int(recorded)))
    query = (
        "UPDATE runs SET several = CASE WHEN policy <> ? OR version <> ? THEN 1 ELSE several END, "
        "version = CASE WHEN policy IS NULL THEN ? ELSE version END, policy = coalesce(policy, ?) WHERE number = ?"
    )
    db.execute(query, (policy, version, version, policy, number))


def note_nodes(db: Connection, number: int, rewards: Mapping[str, float]) -> None:
    """A client reported the rewards of nodes, in place of those that it reported before."""
    db.execute("DELETE FROM run_nodes WHERE run = ?", (number,))
    # PostgreSQL's books replace a NUL, which could make two names one, and its index takes no name of kilobytes.
    by_name = {storable(writable(node))[:200]: reward for node, reward in rewards.items()}
    finite = {node: reward for node, reward in by_name.items() if abs(reward) <= MOST_REWARD}
    db.executemany("INSERT INTO run_nodes VALUES (?, ?, ?)", [(number, *row) for row in finite.items()])


def note_trace(db: Connection, run_id: str, trace: RunTrace, answer: str) -> int:
    """A client reported what a run did. Returns the number of its row.

    Args:
        db: A connection in a transaction.
        run_id: Id of the rollout.
        trace: The report.
        answer: The beginning of what the run answered.
    """
    number = row_of(db, run_id, trace.started)
    columns: dict[str, Any] = {
        "trajectory": writable(trace.id),
        "seconds": trace.seconds,
        "failed": None if trace.error is None else writable(trace.error[:_TEXT]),
        "graph": None if trace.graph_id is None else writable(trace.graph_id),
        "traced": 1,
    }
    if trace.evaluation:  # a report without it does not end what the registration said
        columns["evaluation"] = 1
    if trace.reward is not None and math.isfinite(trace.reward):
        columns |= {"reward": trace.reward, "rewarded_by": writable(trace.reward_source or "reward function")}
    change(db, number, **columns)
    note_scenario(db, number, trace.scenario, answer)
    note_nodes(db, number, trace.node_rewards or {})
    for call in trace.completions:
        policy = (call.model or "").partition("@")[0]
        if call.id is not None and call.version is not None and re.fullmatch(NAME_PATTERN, policy):
            note_version(db, number, policy, call.version, recorded=False)
    return number


def source_place(db: Connection, source: str) -> str:
    """How far a source of runs was read; empty: it was not."""
    row = db.execute("SELECT place FROM run_sources WHERE source = ?", (source,)).fetchone()
    return str(row[0]) if row else ""


def set_source_place(db: Connection, source: str, place: str) -> None:
    query = "INSERT INTO run_sources VALUES (?, ?) ON CONFLICT (source) DO UPDATE SET place = excluded.place"
    db.execute(query, (source, place))
