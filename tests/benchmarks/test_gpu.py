"""benchmarks.gpu: its rehearsal without a GPU, its parts' time, and the tables that are made of its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.page import FIGURES, PAGES, runs_of, with_tables
from benchmarks.gpu.parts import PARTS, Options, run_part, skip_reason


def rehearse(*parts: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--device", "cpu", "--json", "--minutes", "60"]
    done = subprocess.run([*command, "--only", *parts], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    run: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert {name: part["state"] for name, part in run["parts"].items()} == dict.fromkeys(parts, "done")
    return run["parts"]


@pytest.mark.slow
def test_the_trainer_is_rehearsed_without_a_gpu() -> None:
    parts = rehearse("exactness", "step-0.6B", "sft")
    exact = [row for row in parts["exactness"]["rows"] if row["dtype"] == "float32"]
    assert len(exact) == 3
    assert all(row["logp_error"] < 1e-4 and row["gradient_error"] < 1e-4 for row in exact)
    sides = ["S", "M", "L", "S, padded", "M, padded", "L, padded", "S, PEFT", "M, PEFT", "L, PEFT"]
    assert [row["row"] for row in parts["step-0.6B"]["rows"]] == ["load", *sides]
    assert parts["sft"]["rows"][0]["tokens_per_s"] > 0


@pytest.mark.vllm
def test_engine_and_loop_are_rehearsed_without_a_gpu() -> None:
    parts = rehearse("serving", "learning")
    rows = {row["row"]: row for row in parts["serving"]["rows"]}
    counts = ("gateway, 2", "graphs, 2", "gateway, 4", "graphs, 4")
    assert list(rows) == ["first start", "second start", *counts, "loop, step 1", "loop, step 2", "raw vLLM"]
    assert rows["loop, step 2"]["version"] == 2
    assert rows["loop, step 2"]["logp_gap"] < 0.05
    assert rows["raw vLLM"]["by_requests"]["4"]["completions_per_s"] > 0
    assert parts["learning"]["rows"][-1]["steps"] == 2


def test_a_part_ends_with_its_time(tmp_path: Path) -> None:
    options = Options(device="cpu", tiny=True, model=None, scratch=tmp_path)
    end = run_part(PARTS[0], options, 0.0, lambda row: pytest.fail(f"{row} cannot be measured in no time"))
    assert end["state"] == "ended after 0 s"


def test_what_needs_more_gpus_is_skipped_with_the_reason() -> None:
    reasons = {part.name: skip_reason(part, 1) for part in PARTS}
    assert {name for name, reason in reasons.items() if reason} == {"several"}
    assert reasons["several"] == "it needs 2 GPUs, and 1 can be used"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_are_those_of_the_figures(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_tables(text, runs_of(FIGURES)) == text, "`python -m benchmarks.gpu --page` writes them"
