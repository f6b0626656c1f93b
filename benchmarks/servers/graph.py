"""server-memory on a knowledge graph in a JSONL file: people, cities and projects, and what connects them."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx
from benchmarks.servers.words import CITIES, PEOPLE, TOPICS
from trainer_server.common.jsonl import write_jsonl


def make_graph(where: Path, seed: int) -> Path:
    """Makes the file.

    Args:
        where: An empty directory.
        seed: Seed of the entities and relations.

    Returns:
        The file.
    """
    rng, path = random.Random(f"graph-{seed}"), where / "memory.jsonl"
    people = [" ".join(one) for one in rng.sample(PEOPLE, 8)]
    cities, projects = rng.sample(CITIES, 5), rng.sample(TOPICS, 5)
    entities = [
        *(
            {"name": one, "entityType": "person", "observations": [f"born in {rng.randrange(1950, 2000)}"]}
            for one in people
        ),
        *({"name": one, "entityType": "city", "observations": [f"{rng.randrange(1, 90)} bridges"]} for one in cities),
        *(
            {"name": one, "entityType": "project", "observations": [f"budget {rng.randrange(2, 90)} k"]}
            for one in projects
        ),
    ]
    relations = [{"from": one, "to": rng.choice(cities), "relationType": "lives in"} for one in people]
    relations += [{"from": one, "to": rng.choice(projects), "relationType": "works on"} for one in people]
    write_jsonl(
        path, [*({"type": "entity", **one} for one in entities), *({"type": "relation", **one} for one in relations)]
    )
    return path


SERVER = BenchmarkServer(
    "memory",
    lambda: npx("@modelcontextprotocol/server-memory"),
    make_graph,
    {**npm_cache(), "MEMORY_FILE_PATH": "{world}"},
    use="development",
)
