"""The picture of an example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from art_examples.learning.curve import STAGES, draw, figures, figures_in


def row(seed: int, task: str = "a", warm: bool = True) -> dict[str, Any]:
    measured = {"success": 0.5, "interval": [0.4, 0.6]}
    stages = {name: measured if warm or name != "warm" else None for name in STAGES}
    return {"task": task, "seed": seed, **stages, "rewards": [0.1, None, 0.3]}


def test_each_task_and_seed_is_in_it_and_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    rows = [row(0), row(1), row(0, "b", warm=False)]
    for name in ("one.svg", "two.svg"):
        draw(tmp_path / "made" / name, rows)
    text = (tmp_path / "made" / "one.svg").read_text()
    for word in (">a<", ">b<", "seed 1", "after RL", "prompted"):
        assert word in text
    assert figures_in(tmp_path / "made" / "one.svg") == [figures(row) for row in rows]
    assert "no steps of RL" not in text
    assert text == (tmp_path / "made" / "two.svg").read_text()


def test_a_run_without_steps_shows_no_success_after_rl(tmp_path: Path) -> None:
    imitated, neither = {**row(0), "rewards": []}, {**row(0, warm=False), "rewards": []}
    assert figures(imitated)["after"] is None
    assert figures(neither)["after"] == [0.5, 0.4, 0.6]
    draw(tmp_path / "a.svg", [imitated])
    assert "no steps of RL" in (tmp_path / "a.svg").read_text()
