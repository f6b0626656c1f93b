"""tryll-dataset-builder-mcp on a directory of data sets: what a zoo and a botanical garden tell their visitors."""

from __future__ import annotations

import json
import random
import uuid
from pathlib import Path
from typing import Any

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx

_SETS = {
    "zoo": {"Birds": ("Barn owl", "Flamingo", "Kingfisher"), "Mammals": ("Otter", "Red panda", "Brown bear", "Lynx"),
            "Reptiles": ("Gecko", "Python")},
    "garden": {"Trees": ("Ginkgo", "Copper beech", "Walnut"), "Ferns": ("Royal fern", "Maidenhair"),
               "Herbs": ("Sage", "Lovage", "Hyssop")},
}  # fmt: skip


def make_data_sets(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of ids and figures.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"data-sets-{seed}"), where / "datasets"
    root.mkdir()

    def new_id() -> str:
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))

    def chunk(name: str) -> dict[str, Any]:
        text = f"{name}: {rng.randrange(2, 40)} of them live here, in area {rng.randrange(1, 30)}. "
        text += f"The first one came in {rng.randrange(1890, 2020)}."
        about = {"page_title": name, "source": f"leaflet {rng.randrange(1, 9)}", "license": "CC BY 4.0"}
        own = name.lower().replace(" ", "_")
        return {"_uid": new_id(), "id": own, "text": text, "metadata": about, "customFields": []}

    for name, groups in _SETS.items():
        categories = [
            {"id": new_id(), "name": group, "chunks": [chunk(name) for name in names]}
            for group, names in groups.items()
        ]
        whole = {"name": name, "createdAt": f"2026-0{rng.randrange(1, 9)}-11T09:30:00.000Z", "categories": categories}
        (root / f"{name}.json").write_text(json.dumps(whole, indent=2))
    return root


SERVER = BenchmarkServer(
    "dataset-builder-mcp",
    lambda: npx("tryll-dataset-builder-mcp@1.3.1"),
    make_data_sets,
    npm_cache() | {"DATA_DIR": "{world}"},
    use="seen",
)
