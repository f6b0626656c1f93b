"""notes-vault-mcp on a directory with a vault of notes under a schema: what a small web shop knows of its systems."""

from __future__ import annotations

import random
from datetime import date, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import PEOPLE, TOPICS, VERBS

_AREAS = ("storefront", "warehouse", "payments", "accounts")
_KINDS = ("trap", "decision", "howto")
_FACTS = ("Times out after {} seconds", "Runs on port {}", "Keeps {} days of history", "Takes {} requests a minute")


def make_vault(where: Path, seed: int) -> Path:
    """Makes the directory, with the vault in `vault`.

    Args:
        where: An empty directory.
        seed: Seed of the notes.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"notes-vault-{seed}"), where / "home"

    def write(folder: str, stem: str, kind: str, title: str, text: str, status: str = "active", **more: str) -> None:
        begin = date(2026, 8, 1) + timedelta(days=rng.randrange(90))
        fields = {"title": title, "date": begin, "updated": begin + timedelta(days=rng.randrange(20)), "kind": kind}
        fields |= {"status": status, "tags": f"[{', '.join(rng.sample(TOPICS, 2))}]", **more}
        head = "\n".join(f"{name}: {value}" for name, value in fields.items())
        path = root / "vault" / folder / f"{stem}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"---\n{head}\n---\n\n# {title}\n\n{text}\n")

    def fact() -> str:
        return rng.choice(_FACTS).format(rng.randrange(5, 90))

    for area in _AREAS:
        owner = " ".join(rng.choice(PEOPLE))
        write("Areas", area, "system", area.capitalize(), f"Owner: {owner}\n\n{fact()}.", path=f"~/code/{area}")
        link = f'"[[{area}]]"'
        for topic in rng.sample(TOPICS, 3):
            kind, text = rng.choice(_KINDS), f"{fact()}. See [[{area}]]."
            write("Resources", f"{area}-{topic}", kind, f"{topic.capitalize()} of the {area}", text, area=link)
        for topic in rng.sample(TOPICS, 3):
            title = f"{rng.choice(VERBS)} the {topic} of the {area}"
            text, stem = f"Wanted by {rng.choice(PEOPLE)[0]}. {fact()} today.", title.lower().replace(" ", "-")
            if rng.random() < 0.5:
                priority = rng.choice(("urgent", "high", "medium", "low"))
                write("Projects", stem, "task", title, text, "backlog", area=link, priority=priority)
            else:
                write("Projects", stem, "task", title, text, area=link)
    return root


SERVER = BenchmarkServer(
    "notes-vault-mcp",
    lambda: [pypi("notes-vault-mcp", "notes-vault-mcp==0.8.0")],
    make_vault,
    {"HOME": "{world}", "VAULT_PATH": "{world}/vault", "VAULT_CACHE_DIR": "{world}/.cache"},
    use="untouched",
)
