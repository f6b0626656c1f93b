"""tackit on a repository with a store of tasks: the preparations of a town's fair."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi

_TASKS = {
    "design": ("Choose the square", "Draw the map of stalls", "Set the opening hours", "Plan the music"),
    "schema": ("List of sellers", "Register of fees"),
    "production": ("Rent the stage", "Print the posters", "Hire the band", "Order the lights", "Build the stalls"),
    "meta": ("Ask the mayor", "Compare insurances", "Collect ideas for children"),
}
_LABELS = ("music", "money", "people", "place")
_REASONS = ("it needs the size of the square", "the fees pay for it", "the sellers ask for it", "both share a budget")


def _program() -> str:
    return pypi("tackit", "tackit==0.9.2", "mcp<2")


def make_tasks(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of labels and links.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"fair-{seed}"), where / "fair"
    root.mkdir()
    plan, anchors = [], [f"{kind}{at}" for kind in ("design", "schema") for at in range(len(_TASKS[kind]))]
    for kind, names in _TASKS.items():
        for at, name in enumerate(names):
            lines = [f"[{kind}{at}] {name}", f"  kind: {kind}", f"  labels: {rng.choice(_LABELS)}"]
            lines.append(f"  desc: {rng.randrange(2, 30)} people and {rng.randrange(2, 90)} hours are planned.")
            if kind == "production":
                lines += ["  depends_on:", f"    {rng.choice(anchors)} :: {rng.choice(_REASONS)}"]
            plan.append("\n".join(lines))
    for words, text in ((["init"], ""), (["load"], "\n\n".join(plan))):
        subprocess.run([_program(), *words], cwd=root, input=text, text=True, check=True, capture_output=True)
    return root


SERVER = BenchmarkServer(
    "tackit",
    lambda: [_program(), "mcp"],
    make_tasks,
    {"HOME": "{world}"},
    use="seen",
)
