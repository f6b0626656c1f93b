"""The benchmark of groups that stream: its times are what it says, and a short run has both sides."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys

import pytest

from benchmarks.stream import RUNS, TAIL, durations, rate, run_seconds


def test_the_times_of_runs_have_the_tail_that_is_promised() -> None:
    times = run_seconds(0.1)
    assert len(times) == RUNS
    assert statistics.median(times) == pytest.approx(0.1, rel=0.05)
    assert max(times) == pytest.approx(TAIL * 0.1)
    two = list(itertools.islice(durations(0.1), 2 * RUNS))
    assert sorted(two[:RUNS]) == sorted(two[RUNS:]) == pytest.approx(times)
    assert two[:RUNS] != two[RUNS:]


def test_the_first_and_the_last_steps_are_not_counted() -> None:
    ends = [9.0, 9.1, 9.2, 10.0, 11.0, 12.0, 90.0, 91.0, 92.0, 93.0]
    assert rate(ends) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_short_run_streams_faster() -> None:
    line = [sys.executable, "-m", "benchmarks.stream", "--json", "--steps", "12", "--median", "0.02"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps_ratio"] > 1.0
    assert 0 < result["of_ideal"] < 1.2
    assert sum(result["ages"].values()) == 12 * 16
