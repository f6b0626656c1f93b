"""What a quickstart run leaves behind: numbers, pictures, and two runs of one scenario to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_examples.quickstart.agent import PROMPT
from art_examples.quickstart.reward import parts, success
from rich.console import Console
from rich.table import Table

from art_langgraph import Trajectory
from art_langgraph.loop.intervals import wilson


@dataclass(frozen=True, slots=True)
class Measurement:
    """Runs of the held-out scenarios under one version."""

    version: int
    trajectories: list[Trajectory]

    @property
    def n(self) -> int:
        return len(self.trajectories)

    @property
    def successes(self) -> int:
        return sum(map(success, self.trajectories))

    def summary(self) -> dict[str, Any]:
        return {"success": self.successes / self.n, "n": self.n}

    def share(self, part: str) -> float:
        """Mean degree to which runs meet a part of success."""
        return sum(parts(one)[part] for one in self.trajectories) / self.n


def show_comparison(console: Console, measurements: Sequence[Measurement]) -> None:
    """Success with 95 % intervals, and its parts."""
    table = Table("", "success", "95 % interval", "right tool", "right arguments", "faithful answer", "n")
    for name, one in zip(("before", "after"), measurements, strict=False):
        low, high = wilson(one.successes, one.n)
        parts = [f"{one.share(part):.3f}" for part in ("right_tool", "right_arguments", "faithful")]
        table.add_row(
            f"{name} (version {one.version})", f"{one.successes / one.n:.3f}", f"{low:.3f} - {high:.3f}", *parts,
            str(one.n),
        )  # fmt: skip
    console.print(table)


def show_trajectories(console: Console, before: Measurement, after: Measurement) -> None:
    """One scenario that failed before and succeeds after, or the first one, in full."""
    pairs = list(zip(before.trajectories, after.trajectories, strict=True))
    pair = next((pair for pair in pairs if success(pair[1]) and not success(pair[0])), pairs[0])
    for name, one in zip(("before", "after"), pair, strict=True):
        console.rule(f"{name}: {'success' if success(one) else 'failure'} (reward {one.reward})", align="left")
        last = one.completions[-1] if one.completions else None
        for message in [*last.messages[len(PROMPT) :], last.message or {}] if last else []:
            calls = [call["function"] for call in message.get("tool_calls") or []]
            called = " ".join(f"{call['name']}({call['arguments']})" for call in calls)
            text = f"{message.get('role', ''):>9}: {message.get('content') or ''}{called}"
            console.print(text, markup=False, highlight=False)
        if one.error:
            console.print(f" error: {one.error}", markup=False)
    console.rule()


def draw_curve(directory: Path, steps: Sequence[dict[str, Any]], measurements: Sequence[Measurement]) -> None:
    """curve.png and curve.svg: reward and success of training by step, and the held-out success before and after."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    numbers = [row["step"] for row in steps]
    for key, label in (("reward", "mean reward (training)"), ("success", "success (training)")):
        points = [(at, row[key]) for at, row in zip(numbers, steps, strict=True) if row[key] is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, linewidth=1)
    for at, one in zip((0, numbers[-1] if numbers else 0), measurements, strict=False):
        low, high = wilson(one.successes, one.n)
        rate = one.successes / one.n
        axes.errorbar(at, rate, [[rate - low], [high - rate]], fmt="o", color="black", capsize=3,
                      label="success (held out, 95 %)" if at == 0 else None)  # fmt: skip
    axes.set(xlabel="step", ylim=(0, 1.05))
    axes.legend(loc="lower right")
    figure.tight_layout()
    for kind in ("png", "svg"):
        figure.savefig(directory / f"curve.{kind}")
    pyplot.close(figure)
