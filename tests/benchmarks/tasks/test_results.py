"""A file of finished runs: which of them need not be made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.tasks.__main__ import finished, learn_all
from benchmarks.tasks.registry import TASKS
from trainer_server.common.jsonl import append_jsonl


def row(seed: int, steps: int, n: int, **more: Any) -> dict[str, Any]:
    return {"task": "reverse_text", "seed": seed, "steps": steps, "after": {"n": n}, **more}


async def test_only_runs_of_the_same_recipe_steps_and_held_out_scenarios_count(tmp_path: Path) -> None:
    """Rows of the old form, which say nothing of their recipe, count if they have its steps."""
    async with TASKS["reverse_text"](0) as task:
        whole, short = task.fingerprint, task.short(steps=2).fingerprint
    rows = [
        row(0, 24, 120),
        row(1, 2, 120),
        row(2, 24, 24),
        row(3, 24, 120, fingerprint=whole),
        row(4, 2, 120, fingerprint=short),
        row(5, 24, 120, fingerprint="of another recipe"),
    ]
    append_jsonl(tmp_path / "results.jsonl", rows)
    names = ["reverse_text", "sql"]
    assert [seed for _, seed in await finished(tmp_path / "results.jsonl", names)] == [0, 3]
    assert [seed for _, seed in await finished(tmp_path / "results.jsonl", names, steps=2)] == [1, 4]
    assert await finished(tmp_path / "none.jsonl", names) == {}


@pytest.mark.parametrize("steps", [None, 24])
def test_finished_runs_are_not_made_again(steps: int | None, tmp_path: Path) -> None:
    rows = [row(seed, 24, 120) for seed in (0, 1)]
    append_jsonl(tmp_path / "results.jsonl", [*rows, row(0, 2, 120)])
    assert learn_all(["reverse_text"], range(2), steps, tmp_path / "results.jsonl") == rows
