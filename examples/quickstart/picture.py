"""The picture that README begins with: the curve of a quickstart run, and one question before and after.

    python -m art_examples.quickstart.picture runs/latest   # keeps what it shows in picture.json, and draws it
    python -m art_examples.quickstart.picture               # draws picture.json again

It needs a clone of the repository. No figure and no text of the picture is typed.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from art_examples.quickstart.reward import answer, success
from art_examples.quickstart.run_directory import evaluation_file
from art_examples.svg import Card

from art_langgraph import Evaluation, Trajectory
from trainer_server.common.jsonl import read_jsonl

KEPT = Path(__file__).with_name("picture.json")
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "quickstart.svg"
TOP, BOTTOM, LEFT, RIGHT = 86, 272, 54, 356
"""Borders of the curve."""
TEXT, TEXT_END = 392, 700
"""Borders of the question and the two runs."""
CHARACTERS = 42
"""Of a line of them."""
Shown = dict[str, Any]
"""What the picture shows of a run: seed, steps, before, after, question, wanted (the right value), runs."""


def kept(run: Path) -> Shown:
    """What the picture shows of a run.

    Args:
        run: The directory of the run.

    Raises:
        ConfigError: It is no directory of a run that has come to its end.
    """
    rows = list(read_jsonl(run / "metrics.jsonl", dict, what="row of a step"))
    last = rows[-1]["version"]
    before, after = (
        Evaluation.load(evaluation_file(run, version), version=version, success=success) for version in (0, last)
    )
    wrong, right = first_improved(before, after)
    return {
        "seed": json.loads((run / "run.json").read_text())["seed"],
        "steps": [
            {"step": row["step"], "reward": _rounded(row["reward"]), "success": _rounded(row["success"])}
            for row in rows
        ],
        "before": _measured(before),
        "after": _measured(after),
        "question": wrong.scenario.input["messages"][0][1],
        "wanted": wrong.scenario.metadata["value"],
        "runs": [_told(wrong), _told(right)],
    }


def first_improved(before: Evaluation, after: Evaluation) -> tuple[Trajectory, Trajectory]:
    """Both runs of the first scenario that failed before and succeeds after, if there is one where it called a tool.

    Args:
        before: Evaluation of the untrained policy.
        after: Evaluation of the trained policy, on the same scenarios.
    """
    pairs = zip(before.trajectories, after.trajectories, strict=True)
    return max(pairs, key=lambda pair: (after.succeeded(pair[1]) > before.succeeded(pair[0]), bool(pair[0].tool_calls)))


def draw(shown: Shown) -> str:
    """The SVG. shown: what `kept` gives."""
    n = shown["before"]["n"]
    first, last = (f"{shown[when]['success']:.3f}" for when in ("before", "after"))
    told = [
        f"Held-out success {first} before and {last} after {len(shown['steps'])} steps (n = {n}).",
        f"{shown['question']} It is {shown['wanted']}.",
        *(
            f"{when}: {run['call']} gives {run['result']}; {run['answer']}"
            for when, run in zip(("Before", "After"), shown["runs"], strict=True)
        ),
    ]
    about = f"{len(shown['steps'])} steps of GRPO on two CPU cores; seed {shown['seed']}; {n} held-out questions"
    card = Card("An agent learns to use its tools", about, " ".join(told))
    _curve(card, shown)
    _question(card, shown)
    return card.svg(320)


def _curve(card: Card, shown: Shown) -> None:
    steps = shown["steps"]

    def x(step: float) -> float:
        return LEFT + step / steps[-1]["step"] * (RIGHT - LEFT)

    def y(value: float) -> float:
        return BOTTOM - value * (BOTTOM - TOP)

    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        card.line([(LEFT, y(tick)), (RIGHT, y(tick))], "grid")
        card.text(LEFT - 8, y(tick) + 4, f"{tick:g}", color="dim", anchor="end", size=12)
    for step in range(0, steps[-1]["step"] + 1, 2):
        card.text(x(step), BOTTOM + 17, str(step), color="dim", anchor="middle", size=12)
    for name, color in (("reward", "third"), ("success", "before")):
        card.line([(x(row["step"]), y(row[name])) for row in steps if row[name] is not None], color)
    for when, step in (("before", 0), ("after", steps[-1]["step"])):
        measured = shown[when]
        card.line([(x(step), y(end)) for end in measured["interval"]], "mark")
        card.dot(x(step), y(measured["success"]), "after")
        number = f"{measured['success']:.3f}"
        if when == "before":
            card.text(x(step) + 9, y(measured["success"]) + 4, number, bold=True)
        else:
            card.text(x(step) + 6, y(measured["interval"][1]) - 7, number, anchor="end", bold=True)
    legend = (("third", "mean reward"), ("before", "success"), ("after", "success, held out (95 %)"))
    start = 20.0
    for color, name in legend:
        card.box(start, BOTTOM + 28, 11, 11, color)
        card.text(start + 16, BOTTOM + 38, name, size=12)
        start += 34 + 6.2 * len(name)
    card.text(LEFT - 8, BOTTOM + 17, "step", color="dim", anchor="end", size=12)


def _question(card: Card, shown: Shown) -> None:
    y = 82.0
    for line in textwrap.wrap(shown["question"], CHARACTERS):
        card.text(TEXT, y, line, bold=True)
        y += 18
    for when, run, mark, color in zip(("before", "after"), shown["runs"], ("✗", "✓"), ("before", "after"), strict=True):
        lines = [
            *textwrap.wrap(f"{run['call']} → {run['result']}", CHARACTERS),
            *textwrap.wrap(run["answer"], CHARACTERS),
        ]
        height = 34 + 18 * len(lines)
        card.box(TEXT, y, TEXT_END - TEXT, height, "box", round_by=6)
        card.box(TEXT, y, 4, height, color)
        card.text(TEXT + 14, y + 20, f"{when} {mark}", color="dim", size=12)
        for at, line in enumerate(lines):
            card.text(TEXT + 14, y + 40 + 18 * at, line, size=12)
        y += height + 10


def _measured(evaluation: Evaluation) -> dict[str, Any]:
    interval = [round(end, 4) for end in evaluation.success_interval]
    return {"success": _rounded(evaluation.success_rate), "interval": interval, "n": evaluation.n}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _told(run: Trajectory) -> dict[str, str]:
    """The first call of a run that reached the MCP server, its result, and the answer."""
    call = next((call for call in run.tool_calls if call.server is not None), None)
    written = ", ".join(json.dumps(value, ensure_ascii=False) for value in call.arguments.values()) if call else ""
    return {
        "call": f"{call.tool}({written})" if call else "no call",
        "result": str(call.result) if call else "nothing",
        "answer": answer(run) or "(no answer)",
    }


def main(arguments: Sequence[str], tell: Callable[[str], object] = print) -> None:
    """Runs the program. arguments: the directory of a run, or none."""
    for run in arguments:
        KEPT.write_text(json.dumps(kept(Path(run)), indent=1, ensure_ascii=False) + "\n")
    PICTURE.write_text(draw(json.loads(KEPT.read_text())))
    tell(str(PICTURE))


if __name__ == "__main__":
    main(sys.argv[1:])
