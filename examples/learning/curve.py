"""The picture of an example: success on the held-out scenarios at each stage, and the mean reward of each step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

STAGES = {"before": "before", "prompted": "prompted", "warm": "after\nwarm start", "after": "after RL"}
"""Names of the stages in a row of the metrics file, and in the picture."""


def draw(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Draws an SVG. The same rows give the same bytes. Its metadata has the figures that it shows: `figures`.

    Args:
        path: The file.
        rows: Rows of the metrics file, one for each task and seed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "art", "font.size": 9}):
        figure, axes = pyplot.subplots(len(tasks), 2, figsize=(8, 3 * len(tasks)), squeeze=False)
        for task, (left, right) in zip(tasks, axes, strict=True):
            mine = [row for row in rows if row["task"] == task]
            for at, row in enumerate(mine):
                _stages(left, row, (at - (len(mine) - 1) / 2) * 0.12, f"C{at}")
                points = [(step, reward) for step, reward in enumerate(row["rewards"], 1) if reward is not None]
                right.plot(*zip(*points, strict=True), marker="o", markersize=3, color=f"C{at}") if points else None
            if not any(row["rewards"] for row in mine):
                right.text(0.5, 0.5, "no steps of RL", ha="center", transform=right.transAxes)
            left.set_xticks(range(len(STAGES)), list(STAGES.values()))
            left.set(ylim=(0, 1.02), ylabel="success (held out, 95 %)", title=task)
            left.legend(loc="upper left", frameon=False)
            right.set(ylim=(0, 1.02), xlabel="training step", ylabel="mean reward")
            right.xaxis.get_major_locator().set_params(integer=True)
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        description = json.dumps([figures(row) for row in rows])
        figure.savefig(path, metadata={"Date": None, "Creator": None, "Description": description})
        pyplot.close(figure)


def measured_at(row: dict[str, Any], stage: str) -> dict[str, Any] | None:
    """What was measured at a stage of a run.

    Args:
        row: A row of the metrics file.
        stage: A key of STAGES.

    Returns:
        None: Nothing. Nothing either after RL if the run had a warm start and then no steps: its version is the same.
    """
    found: dict[str, Any] | None = row[stage]
    return None if stage == "after" and row["warm"] is not None and not row["rewards"] else found


def figures(row: dict[str, Any]) -> dict[str, Any]:
    """What the picture shows of a run: success and interval of each stage, and the mean reward of each step."""
    found = {stage: measured_at(row, stage) for stage in STAGES}
    stages = {stage: measured and [measured["success"], *measured["interval"]] for stage, measured in found.items()}
    return {"task": row["task"], "seed": row["seed"], **stages, "rewards": row["rewards"]}


def figures_in(path: Path) -> list[dict[str, Any]]:
    """The figures that a picture was drawn of, in the order of its rows. path: an SVG that `draw` made."""
    described = ElementTree.parse(path).iter("{http://purl.org/dc/elements/1.1/}description")
    found: list[dict[str, Any]] = json.loads(next(described).text or "[]")
    return found


def _stages(axes: Any, row: dict[str, Any], shift: float, color: str) -> None:
    """The success rates of a run with their intervals."""
    for at, stage in enumerate(STAGES):
        if (measured := measured_at(row, stage)) is None:
            continue
        rate, (low, high) = measured["success"], measured["interval"]
        label = f"seed {row['seed']}" if stage == "before" else None
        axes.errorbar(at + shift, rate, [[rate - low], [high - rate]], fmt="o", color=color, capsize=3, label=label)
