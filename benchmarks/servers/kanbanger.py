"""kanbanger on a directory with a board in Markdown: the cards of a small workshop in five columns."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi

_CARDS = (
    "Sand the oak table", "Order hinges", "Quote for the Liskov kitchen", "Repair the band saw", "Varnish the doors",
    "Invoice the school", "Photograph the chairs", "Sharpen the chisels", "Deliver the bookcase", "Buy plywood",
    "Measure the staircase", "Sketch a cradle", "Clean the extractor", "Hire an apprentice", "Update the price list",
    "Glue the drawer fronts", "Pack the trade fair stand", "Test the new finish", "Call the timber merchant",
    "Replace the shop lights", "Renew the insurance", "Build the stool prototype", "Label the offcuts",
    "Plan the open day",
)  # fmt: skip
_REMARKS = ("waiting for a part", "customer calls on Friday", "needs two people", "half a day", "ask for a deposit")
_COLUMNS = ("BACKLOG", "TODO", "DOING", "REVIEW", "DONE")


def make_board(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of what is in which column.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"board-{seed}"), where / "workshop"
    root.mkdir()
    cards = rng.sample(_CARDS, len(_CARDS))
    lines = ["# Workshop"]
    for column, count in zip(_COLUMNS, (7, 6, 3, 3, 5), strict=True):
        lines += ["", f"## {column}"]
        for card in cards[:count]:
            lines.append(f"*   [{'x' if column == 'DONE' else ' '}] {card}")
            if rng.random() < 0.4:
                lines.append(f"    - {rng.choice(_REMARKS)}")
        cards = cards[count:]
    (root / "_kanban.md").write_text("\n".join(lines) + "\n")
    return root


SERVER = BenchmarkServer(
    "kanbanger",
    lambda: [pypi("kanbanger-mcp", "kanbanger==3.0.0")],
    make_board,
    {"HOME": "{world}", "KANBANGER_WORKSPACE": "{world}"},
)
