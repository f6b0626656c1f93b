"""@agent-infra/mcp-server-filesystem over HTTP, on a directory tree of a newspaper: articles, letters, accounts."""

from __future__ import annotations

import json
import random
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx
from benchmarks.servers.words import CITIES, PEOPLE, PRODUCTS, TOPICS


def make_newspaper(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of names and contents.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"newspaper-{seed}"), where / "newspaper"
    for folder in ("articles/2025", "articles/2026", "letters", "accounts"):
        (root / folder).mkdir(parents=True)
    for at, topic in enumerate(rng.sample(TOPICS, 12)):
        author, city = " ".join(rng.choice(PEOPLE)), rng.choice(CITIES)
        text = f"{topic.capitalize()} in {city}\nby {author}\n\n{rng.randrange(200, 900)} people came to {city}.\n"
        (root / "articles" / str(2025 + at % 2) / f"{topic}.txt").write_text(text)
    for first, last in rng.sample(PEOPLE, 7):
        text = f"To the editor,\nthe {rng.choice(PRODUCTS)} on page {rng.randrange(2, 24)} was mine.\n{first} {last}\n"
        (root / "letters" / f"{last.lower()}.txt").write_text(text)
    rates = {one: rng.randrange(20, 300) for one in rng.sample(PRODUCTS, 6)}
    (root / "accounts" / "advertisements.json").write_text(json.dumps(rates, indent=2))
    return root


SERVER = BenchmarkServer(
    "filesystem-http",
    lambda: [
        *npx("@agent-infra/mcp-server-filesystem@1.2.29"),
        *("--allowed-directories", "{world}", "--host", "127.0.0.1", "--port", "{port}"),
    ],
    make_newspaper,
    npm_cache(),
    endpoint="/mcp",
)
