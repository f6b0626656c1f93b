"""mcp-cronos, whose tools have Italian names, on a diary of work in Markdown: four weeks of a small software house."""

from __future__ import annotations

import random
from datetime import date, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import PEOPLE, TOPICS, VERBS

_PROJECTS = ("Ferry Timetable", "Museum Guide", "Grain Ledger", "Tax Portal")
_BLOCKERS = ("None", "None", "Waiting for the test server", "The customer's data are late")


def make_diary(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the entries.
    """
    rng, root = random.Random(f"diary-{seed}"), where / "diary"
    root.mkdir()
    (root / "cronos.toml").write_text('[cronos]\nlang = "en"\n[cronos.git]\nenabled = false\n')
    begin = date(2026, 11, 2)
    for day in (begin + timedelta(days=at) for at in range(26)):
        if day.weekday() > 4:
            continue
        lines = [f"# For Stand-up - {day + timedelta(days=1):%B %d, %Y}", "", "## What I did yesterday", ""]
        for project in rng.sample(_PROJECTS, rng.randrange(1, 4)):
            lines += [f"### {project} - {rng.choice(VERBS)} the {rng.choice(TOPICS)}", ""]
            lines += [f"*-Requested by {rng.choice(PEOPLE)[0]}-*", "", f"{rng.randrange(2, 40)} files changed.", ""]
            lines += ["**References:**", f"- Jira: {project[:3].upper()}-{rng.randrange(10, 99)}", "", "---", ""]
        folder = root / f"{day:%Y}" / f"{day:%m}" / f"{day}"
        folder.mkdir(parents=True)
        (folder / "raw.md").write_text("\n".join([*lines, "## Blockers", "", rng.choice(_BLOCKERS), ""]))
        tasks = [f"- [ ] {rng.choice(VERBS)} the {topic}" for topic in rng.sample(TOPICS, 3)]
        (folder / "todo.md").write_text("\n".join(["# To do", "", *tasks, ""]))
    return root


SERVER = BenchmarkServer(
    "mcp-cronos",
    lambda: [pypi("mcp-cronos", "mcp-cronos==1.8.0", "mcp<2")],
    make_diary,
    {"HOME": "{world}", "CRONOS_DIARIO_PATH": "{world}"},
    use="seen",
)
