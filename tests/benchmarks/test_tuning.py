"""Trainings that tune themselves on simulated machines: virtual time, so that nobody sleeps."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.tuning import Machine, measure, simulate, training

STEPS = 16
SMALL = {"groups": 4, "n": 4}


@pytest.mark.parametrize(
    "machine",
    [
        Machine(memory=6, concurrency=64, group_seconds=0.1, **SMALL),
        Machine(memory=1000, concurrency=32, group_seconds=20.0, **SMALL),
        Machine(memory=4, concurrency=64, group_seconds=0.1, staleness=0, **SMALL),
    ],
    ids=["engines", "trainer", "by turns"],
)
def test_what_is_found_is_near_the_best_of_a_sweep(machine: Machine) -> None:
    found = measure(machine, STEPS, seed=1)
    assert found["tuning"] is not None, "the search ends"
    assert found["tuned"] > 0.5 * max(found["sweep"].values())
    assert found["tuned"] > 0.9 * found["default"]
    assert found["most_runs_at_once"] <= (machine.concurrency or 0)


def test_a_limit_of_the_user_is_never_exceeded() -> None:
    machine = Machine(memory=1000, concurrency=None, group_seconds=0.1, **SMALL)
    _, most = simulate(training(machine, STEPS, 0, tune=True))
    assert most > 8
    records, most = simulate(training(machine, STEPS, 0, tune=True, max_concurrency=8))
    assert most <= 8
    assert any(record.tuning is not None for record in records)


@pytest.mark.slow
def test_the_program_has_a_row_for_each_machine() -> None:
    line = [sys.executable, "-m", "benchmarks.tuning", "--json", "--steps", "6", "--seeds", "1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert len({row["machine"] for row in rows}) == len(rows) == 4
    assert all(row["default"] > 0 and row["tuned"] > 0 for row in rows)
