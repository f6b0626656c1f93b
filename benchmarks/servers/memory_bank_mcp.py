"""@allpepper/memory-bank-mcp on a directory of projects with notes in Markdown."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx
from benchmarks.servers.words import CITIES, PEOPLE, TOPICS

_PROJECTS = ("lighthouse", "orchard", "ferry", "granary", "museum", "observatory")
_FILES = ("brief.md", "progress.md", "decisions.md", "people.md", "risks.md")


def make_bank(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the notes.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"bank-{seed}"), where / "bank"
    for project in rng.sample(_PROJECTS, 5):
        (root / project).mkdir(parents=True)
        lead, city, budget = " ".join(rng.choice(PEOPLE)), rng.choice(CITIES), rng.randrange(20, 400)
        for file in _FILES:
            topics = rng.sample(TOPICS, 3)
            lines = "\n".join(
                f"- {one}: {rng.choice(('open', 'done', 'late'))}, {rng.randrange(1, 30)} days" for one in topics
            )
            head = f"# {project.capitalize()}: {file.removesuffix('.md')}\n\nLead: {lead}\nCity: {city}\n"
            (root / project / file).write_text(f"{head}Budget: {budget} k\n\n{lines}\n")
    return root


SERVER = BenchmarkServer(
    "memory-bank-mcp",
    lambda: npx("@allpepper/memory-bank-mcp@0.2.2"),
    make_bank,
    {**npm_cache(), "MEMORY_BANK_ROOT": "{world}"},
)
