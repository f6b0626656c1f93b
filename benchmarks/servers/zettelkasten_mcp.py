"""zettelkasten-mcp on a directory of linked notes on the history of navigation."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi

_NOTES = (
    "The astrolabe at sea", "Dead reckoning", "Longitude prizes", "Portolan charts", "The log line", "Lateen sails",
    "The magnetic compass", "Tide tables", "Star paths of the Pacific", "Harrison's clocks", "Rhumb lines",
    "The quadrant", "Monsoon routes", "Soundings with lead", "Lighthouse optics", "The traverse board",
    "Mercator's projection", "Almanacs", "Pilots and harbours", "The sextant", "Ice reports", "Winds of the Atlantic",
    "Knots and speed", "The mariner's mirror", "Signal flags",
)  # fmt: skip
_TAGS = ("instruments", "maps", "astronomy", "weather", "people", "ships")
_KINDS = ("permanent", "literature", "fleeting", "structure")
_LINKS = ("reference", "extends", "refines", "supports", "questions")
_BEGIN = datetime(2026, 3, 1, 9)


def make_notes(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of tags, links and times.

    Returns:
        The directory.
    """
    rng, root, at = random.Random(f"notes-{seed}"), where / "zettel", _BEGIN
    notes = root / "data" / "notes"
    notes.mkdir(parents=True)
    ids: list[str] = []
    for title in rng.sample(_NOTES, len(_NOTES)):
        at += timedelta(minutes=rng.randrange(200, 9_000))
        name, tags = f"{at:%Y%m%dT%H%M%S}{rng.randrange(10**9):09}", rng.sample(_TAGS, rng.randrange(1, 4))
        head = f"---\nid: {name}\ntitle: {title}\ntype: {rng.choice(_KINDS)}\ntags:\n"
        head += (
            "".join(f"- {tag}\n" for tag in tags) + f"created: '{at.isoformat()}'\nupdated: '{at.isoformat()}'\n---\n"
        )
        text = f"# {title}\n\nIn use from {rng.randrange(1100, 1800)}, on {rng.randrange(2, 90)} known ships.\n"
        linked = rng.sample(ids, min(len(ids), rng.randrange(3)))
        links = "".join(f"- {rng.choice(_LINKS)} [[{one}]]\n" for one in linked)
        (notes / f"{name}.md").write_text(f"{head}{text}" + (f"\n## Links\n{links}" if links else ""))
        ids.append(name)
    return root


SERVER = BenchmarkServer(
    "zettelkasten-mcp",
    lambda: [pypi("zettelkasten-mcp", "iflow-mcp-zettelkasten-mcp==1.2.1", "mcp==1.9.4", "pydantic==2.11.7")],
    make_notes,
    {"HOME": "{world}", "ZETTELKASTEN_BASE_DIR": "{world}"},
)
