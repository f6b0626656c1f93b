"""server-filesystem on a directory tree: letters, notes by topic, a table."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx
from benchmarks.servers.words import CITIES, PEOPLE, PRODUCTS, TOPICS


def make_files(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of names and contents.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"files-{seed}"), where / "papers"
    for folder in ("letters", "notes", "notes/old", "tables"):
        (root / folder).mkdir(parents=True)
    for first, last in rng.sample(PEOPLE, 6):
        text = f"Dear {first} {last},\nwe meet in {rng.choice(CITIES)} at {rng.randrange(8, 19)}:00.\n"
        (root / "letters" / f"{first.lower()}.txt").write_text(text)
    for at, topic in enumerate(rng.sample(TOPICS, 8)):
        folder = root / "notes" / "old" if at % 3 == 2 else root / "notes"
        lines = "\n".join(f"- {rng.choice(PRODUCTS)}: {rng.randrange(2, 99)}" for _ in range(rng.randrange(2, 6)))
        (folder / f"{topic}.md").write_text(f"# {topic.capitalize()}\n{lines}\n")
    rows = "\n".join(f"{name},{rng.randrange(2, 99)}" for name in rng.sample(PRODUCTS, 6))
    (root / "tables" / "prices.csv").write_text(f"name,price\n{rows}\n")
    return root


SERVER = BenchmarkServer(
    "filesystem",
    lambda: [*npx("@modelcontextprotocol/server-filesystem"), "{world}"],
    make_files,
    npm_cache(),
    use="development",
)
