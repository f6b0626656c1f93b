"""Output of a quickstart run: a table of steps, the summary, the training curve, and two runs of a scenario."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from art_examples.quickstart.agent import PROMPT
from art_examples.quickstart.budget import budget, show_budget
from art_examples.quickstart.picture import first_improved
from art_examples.quickstart.reward import parts, success
from art_examples.quickstart.run_directory import RunDirectory
from rich.console import Console
from rich.table import Table

from art_langgraph import Evaluation, Trajectory, TrajectoryGroup, dead_groups
from art_langgraph.costs import Cost, RunCost
from trainer_server.wire.text import quantity


def write(
    console: Console,
    directory: RunDirectory,
    seed: int,
    before: Evaluation,
    after: Evaluation | None,
    seconds: Mapping[str, float],
    peak_memory: Mapping[str, int],
) -> None:
    """Writes summary.json, budget.json, curve.png and curve.svg, and shows two runs, the comparison and the budget.

    Args:
        console: Shows the runs, the comparison and the budget.
        directory: Directory of the run.
        seed: Seed of the run.
        before: Evaluation of the untrained policy.
        after: Evaluation of the trained policy. None: it was not trained.
        seconds: Seconds until the server was ready (`ready`), of both evaluations (`measuring`), and of the whole run
            (`total`).
        peak_memory: Bytes by process, as `Meter` gives them.
    """
    steps = directory.steps()
    evaluations = [before] if after is None else [before, after]
    directory.write_summary(summary(seed, steps, before, after, seconds))
    draw_curve(directory.path, steps, evaluations)
    if after is not None:
        show_trajectories(console, before, after)
    show_comparison(console, evaluations)
    spent = budget(steps, seconds, peak_memory)
    directory.write_budget(spent)
    show_budget(console, spent, seconds["total"])
    console.print(f"training: {cost(steps, before, after)}", highlight=False)
    console.print(f"summary, curve, metrics and adapter are in {directory.path}/ (also runs/latest)")


def summary(
    seed: int,
    steps: Sequence[Mapping[str, Any]],
    before: Evaluation,
    after: Evaluation | None,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """The content of summary.json.

    Args:
        seed: Seed of the run.
        steps: Rows of metrics.jsonl.
        before: Evaluation of the untrained policy.
        after: Evaluation of the trained policy. None: it was not trained.
        seconds: As those of `write`.
    """
    swaps = [row["seconds"]["swap"] for row in steps]
    spent = cost(steps, before, after)
    return {
        "seed": seed,
        "steps": len(steps),
        "before": {"success": before.success_rate, "n": before.n},
        "after": None if after is None else {"success": after.success_rate, "n": after.n},
        "cost": {**spent.total.summary(), "gain": spent.gain, "gain_per_usd": spent.gain_per_usd},
        "seconds": {
            "ready": round(seconds["ready"], 3),
            "rollout": round(sum(row["seconds"]["rollout"] for row in steps), 3),
            "train": round(sum(row["seconds"]["train"] for row in steps), 3),
            "swap_median": round(statistics.median(swaps), 4) if swaps else None,
            "total": round(seconds["total"], 3),
        },
    }


def cost(steps: Sequence[Mapping[str, Any]], before: Evaluation, after: Evaluation | None) -> RunCost:
    """What the training steps cost, without the measurements before and after, and what they gained.

    Args:
        steps: Rows of metrics.jsonl.
        before: Evaluation of the untrained policy.
        after: Evaluation of the trained policy. None: it was not trained.
    """
    total = sum((Cost.of_summary(row["cost"]) for row in steps if row.get("cost")), Cost())
    gain = None
    if after is not None and after.success_rate is not None and before.success_rate is not None:
        gain = after.success_rate - before.success_rate
    return RunCost(total, gain=gain)


def show_evaluation(console: Console, evaluation: Evaluation, when: str) -> None:
    """Shows the success on the held-out scenarios, and the first error if runs have raised.

    Args:
        console: Where to show it.
        evaluation: The evaluation.
        when: "before training" or "after training".
    """
    if evaluation.failed:
        error = next(trajectory.error for trajectory in evaluation.trajectories if trajectory.error)
        console.print(f"{quantity(evaluation.failed, 'run')} raised, the first: {error}", style="red", markup=False)
    rate = _number(evaluation.success_rate)
    console.print(f"held-out success {when}: {rate} (n = {evaluation.n}, temperature 0)")


def show_steps(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Shows the header of the table of steps, and a line for each row of metrics.jsonl."""
    console.print(f"{'step':>4} {'reward':>7} {'success':>8} {'rollout s':>10} {'train s':>8} {'swap s':>7}")
    for row in rows:
        show_step(console, row)


def show_step(console: Console, row: Mapping[str, Any]) -> None:
    """Shows a line of the table of steps. row: a row of metrics.jsonl."""
    seconds = row["seconds"]
    skipped = f"  {row['skipped']}" if row["skipped"] else ""
    console.print(
        f"{row['step']:>4} {_number(row['reward']):>7} {_number(row['success']):>8} {seconds['rollout']:>10.1f} "
        f"{seconds['train']:>8.1f} {seconds['swap']:>7.2f}{skipped}",
        highlight=False,
    )


def show_dead_groups(console: Console, groups: Sequence[TrajectoryGroup]) -> None:
    """Shows which scenarios never taught anything, why, and what to do; nothing where each group taught something.

    Args:
        console: Where to show it.
        groups: The groups of all steps.
    """
    if (dead := dead_groups(groups, success=success)).dead:
        console.print(str(dead), markup=False, highlight=False)


def show_comparison(console: Console, evaluations: Sequence[Evaluation]) -> None:
    """Shows a table with the success, its 95 % interval, and the parts of the reward.

    Args:
        console: Where to show it.
        evaluations: Before training, and after it if the policy was trained.
    """
    table = Table("", "success", "95 % interval", "right tool", "right arguments", "faithful answer", "n")
    for name, evaluation in zip(("before", "after"), evaluations, strict=False):
        low, high = evaluation.success_interval
        table.add_row(
            f"{name} (version {evaluation.version})",
            _number(evaluation.success_rate),
            f"{low:.3f} - {high:.3f}",
            *(_number(_mean_of(evaluation, part)) for part in ("right_tool", "right_arguments", "faithful")),
            str(evaluation.n),
        )
    console.print(table)


def show_trajectories(console: Console, before: Evaluation, after: Evaluation) -> None:
    """Shows both runs of the first scenario that failed before and succeeds after, or else of the first scenario."""
    run_before, run_after = first_improved(before, after)
    _show_run(console, "before", run_before, before.succeeded(run_before))
    _show_run(console, "after", run_after, after.succeeded(run_after))
    console.rule()


def draw_curve(directory: Path, steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Evaluation]) -> None:
    """Draws curve.png and curve.svg: reward and success of training by step, and held-out success before and after.

    Args:
        directory: Directory for the pictures.
        steps: Rows of metrics.jsonl.
        evaluations: Before training, and after it if the policy was trained.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    numbers = [row["step"] for row in steps]
    for key, label in (("reward", "mean reward (training)"), ("success", "success (training)")):
        points = [(number, row[key]) for number, row in zip(numbers, steps, strict=True) if row[key] is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, linewidth=1)
    for step, evaluation in zip((0, numbers[-1] if numbers else 0), evaluations, strict=False):
        if (rate := evaluation.success_rate) is not None:
            low, high = evaluation.success_interval
            label = "success (held out, 95 %)" if step == 0 else None
            axes.errorbar(step, rate, [[rate - low], [high - rate]], fmt="o", color="black", capsize=3, label=label)
    axes.set(xlabel="step", ylim=(0, 1.05))
    axes.legend(loc="lower right")
    figure.tight_layout()
    for kind in ("png", "svg"):
        figure.savefig(directory / f"curve.{kind}")
    pyplot.close(figure)


def _show_run(console: Console, name: str, run: Trajectory, succeeded: bool) -> None:
    """Shows the messages of a run without the prompt. name: heading of the run."""
    console.rule(f"{name}: {'success' if succeeded else 'failure'} (reward {_number(run.reward)})", align="left")
    last = run.completions[-1] if run.completions else None
    for message in [*last.messages[len(PROMPT) :], last.message or {}] if last else []:
        calls = [call["function"] for call in message.get("tool_calls") or []]
        called = " ".join(f"{call['name']}({call['arguments']})" for call in calls)
        text = f"{message.get('role', ''):>9}: {message.get('content') or ''}{called}"
        console.print(text, markup=False, highlight=False)
    if run.error:
        console.print(f" error: {run.error}", markup=False)


def _mean_of(evaluation: Evaluation, part: str) -> float | None:
    """Mean of a part of the reward."""
    return evaluation.mean_of(lambda trajectory: parts(trajectory)[part])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
