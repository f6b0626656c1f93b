"""markdown-vault-mcp on a vault of notes with frontmatter, tags and links: recipes, journeys, people, books."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import CITIES, PEOPLE

_DISHES = (
    "Lentil soup", "Apple cake", "Fish curry", "Onion tart", "Rye bread", "Pea risotto", "Plum jam", "Bean salad",
)  # fmt: skip
_INGREDIENTS = ("onions", "butter", "flour", "lemons", "rice", "eggs", "thyme", "apples", "lentils", "cream", "garlic")
_BOOKS = (
    "The Long Field", "A Map of Salt", "Winter Bridges", "The Glass Mill", "Nine Harbours", "Small Engines",
    "The Quiet Orchard", "Letters from the Quay",
)  # fmt: skip


def make_vault(where: Path, seed: int) -> Path:
    """Makes the vault.

    Args:
        where: An empty directory.
        seed: Seed of the notes.

    Returns:
        Its directory.
    """
    rng, root = random.Random(f"vault-{seed}"), where / "vault"
    people = [" ".join(one) for one in rng.sample(PEOPLE, 8)]
    cities = rng.sample(CITIES, 8)

    def note(folder: str, title: str, tags: list[str], fields: dict[str, object], body: str) -> None:
        (root / folder).mkdir(parents=True, exist_ok=True)
        head = "".join(f"{key}: {value}\n" for key, value in {"title": title, **fields}.items())
        text = f"---\n{head}tags: [{', '.join(tags)}]\n---\n\n# {title}\n\n{body}\n"
        (root / folder / f"{title}.md").write_text(text)

    for one in rng.sample(_DISHES, 8):
        needs = "\n".join(f"- {rng.randrange(50, 600, 50)} g {what}" for what in rng.sample(_INGREDIENTS, 4))
        minutes, cook = rng.randrange(15, 120, 5), rng.choice(people)
        body = f"From [[{cook}]].\n\n## Ingredients\n\n{needs}\n\n## Method\n\nCook for {minutes} minutes."
        note("recipes", one, ["recipe", rng.choice(["quick", "slow", "baking"])], {"minutes": minutes}, body)
    for city in cities:
        nights, guest = rng.randrange(2, 9), rng.choice(people)
        body = f"With [[{guest}]], {nights} nights.\n\n## Budget\n\n{rng.randrange(200, 1_800, 20)} euros."
        note("journeys", city, ["travel", rng.choice(["train", "boat", "plane"])], {"nights": nights}, body)
    for one in people:
        city, born = rng.choice(cities), rng.randrange(1950, 2004)
        body = f"Lives in [[{city}]]. Likes *{rng.choice(_BOOKS)}*."
        note("people", one, ["person"], {"born": born, "city": city}, body)
    for one in rng.sample(_BOOKS, 6):
        stars, reader = rng.randrange(1, 6), rng.choice(people)
        body = f"Lent by [[{reader}]].\n\n## Notes\n\nRead in {rng.choice(cities)}, {stars} of 5."
        note("books", one, ["book", rng.choice(["novel", "essay"])], {"stars": stars}, body)
    return root


SERVER = BenchmarkServer(
    "markdown-vault-mcp",
    lambda: [pypi("markdown-vault-mcp", "markdown-vault-mcp==5.1.0"), "serve"],
    make_vault,
    {"HOME": "{world}", "MARKDOWN_VAULT_MCP_SOURCE_DIR": "{world}"},
    use="development",
)
