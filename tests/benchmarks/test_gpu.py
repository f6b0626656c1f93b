"""benchmarks.gpu: the trainer rehearsed without a GPU, the time of parts, the tables made of its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu.page import FIGURES, PAGES, runs_of, with_tables
from benchmarks.gpu.parts import PARTS, Options, run_part, skip_reason
from tests.support.benchmarks.rehearsal import rehearse


@pytest.mark.slow
def test_the_trainer_is_rehearsed_without_a_gpu() -> None:
    parts = rehearse("exactness", "step-0.6B", "sft")
    exact = [row for row in parts["exactness"]["rows"] if row["dtype"] == "float32"]
    assert len(exact) == 3
    assert all(row["logp_error"] < 1e-4 and row["gradient_error"] < 1e-4 for row in exact)
    sides = ["S", "M", "L", "S, padded", "M, padded", "L, padded", "S, PEFT", "M, PEFT", "L, PEFT"]
    assert [row["row"] for row in parts["step-0.6B"]["rows"]] == ["load", *sides]
    assert parts["sft"]["rows"][0]["tokens_per_s"] > 0


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
