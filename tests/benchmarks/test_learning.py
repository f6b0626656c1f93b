"""benchmarks.learning: what it reads of a run of the quickstart, and how it sums up several seeds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.learning import report, run_quickstart

QUICKSTART = """
import json, pathlib, sys
print("measuring", *sys.argv[1:], flush=True)
seed = int(sys.argv[sys.argv.index("--seed") + 1])
if seed == 9:
    sys.exit("the trainer server ended while starting")
run = pathlib.Path("runs/latest")
run.mkdir(parents=True)
summary = {"seed": seed, "steps": 1, "before": {"success": 0.25, "n": 40}, "after": {"success": 0.75, "n": 40},
           "seconds": {"ready": 1.0, "rollout": 2.0, "train": 3.0, "swap_median": 0.1, "total": 7.0}}
spent = {"seconds": {"rollouts": 2.0}, "rollouts": {"requests": {"decode": 9.0}}, "peak_memory": {"total": 2**30}}
(run / "budget.json").write_text(json.dumps(spent))
(run / "summary.json").write_text(json.dumps(summary))
row = {"step": 1, "version": 1, "reward": 0.5, "success": 0.4, "seconds": {"rollout": 2.0}, "metrics": {}}
(run / "metrics.jsonl").write_text(json.dumps(row) + "\\n")
"""


def test_a_run_is_read_from_its_directory(tmp_path: Path) -> None:
    row = run_quickstart(3, tmp_path / "seed-3", ["--steps", "1"], [sys.executable, "-c", QUICKSTART])
    assert (tmp_path / "seed-3" / "output.log").read_text() == "measuring --seed 3 --steps 1\n"
    assert (row["seed"], row["before"], row["after"], row["held_out"]) == (3, 0.25, 0.75, 40)
    assert row["after_interval"] == pytest.approx([0.598, 0.858], abs=1e-3)  # Wilson's, 30 of 40
    assert row["steps"] == [{"step": 1, "reward": 0.5, "success": 0.4, "seconds": {"rollout": 2.0}}]
    assert row["phases"]["total"] == 7.0
    assert row["budget"] == {"seconds": {"rollouts": 2.0}, "rollouts": {"requests": {"decode": 9.0}}}
    assert row["peak_memory"] == 2**30
    assert 0 <= row["seconds"] < 20
    json.dumps(row)


def test_a_run_that_fails_ends_the_program_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ended with 1\. .*\n.*\nthe trainer server ended while starting"):
        run_quickstart(9, tmp_path, (), [sys.executable, "-c", QUICKSTART])


def test_seeds_are_summed_up_by_the_worst_and_the_median() -> None:
    seeds = [{"after": after, "seconds": seconds} for after, seconds in ((0.9, 200.0), (0.95, 260.0), (0.85, 220.0))]
    result = report("quickstart", seeds)
    assert (result["worst_after"], result["median_seconds"]) == (0.85, 220.0)
    assert report("quickstart", [*seeds, {"after": None, "seconds": 1.0}])["worst_after"] is None
