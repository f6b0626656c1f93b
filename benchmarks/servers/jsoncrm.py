"""jsoncrm over HTTP on a directory with JSON files: the leads, prospects and customers of a maker of laboratory scales.

Its own command knows stdio alone, so its server object is run over HTTP. It reads the files anew for each call.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from benchmarks.servers.server import BenchmarkServer
from benchmarks.servers.words import CITIES, PEOPLE
from testbed.environments import environment

_RUN = """
import sys
from jsoncrm.mcp import create_server
server = create_server(".crm.json")
server.settings.port = int(sys.argv[1])
server.run("streamable-http")
"""
_COMPANIES = ("Fjord Pharma", "Solano Foods", "Vega Dyes", "Arctic Labs", "Delta Ceramics", "Nova Soap", "Lindt Assay")
_RIVALS = ("Balanta", "Gramm & Partners", "Tara Instruments")
_POSITIONS = ("Head of Quality", "Laboratory Manager", "Buyer", "Chief Chemist", "Process Engineer")
_SOURCES = ("trade fair", "referral", "website", "webinar")
_NOTES = ("Asked for a quote", "Wants a demonstration", "Call after the holidays", "Compares two vendors", "")


def make_crm(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the people and their scores.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"crm-{seed}"), where / "crm"
    root.mkdir()

    def write(name: str, content: Any) -> None:
        (root / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def records(people: Sequence[tuple[str, str]], companies: Sequence[str]) -> list[dict[str, Any]]:
        made = []
        for first, last in people:
            company, added = rng.choice(companies), date(2026, 8, 1) + timedelta(days=rng.randrange(100))
            address = f"{first}.{last}@{company.split()[0]}.example".lower()
            made.append(
                {
                    "name": f"{first} {last}",
                    "position": rng.choice(_POSITIONS),
                    "company": company,
                    "city": rng.choice(CITIES),
                    "linkedin_url": f"https://www.linkedin.com/in/{first}-{last}/".lower(),
                    "email": address,
                    "score": "⭐" * rng.randrange(1, 6),
                    "connected": rng.random() < 0.5,
                    "contacted_at": rng.choice((None, str(added + timedelta(days=9)))),
                    "source": rng.choice(_SOURCES),
                    "added": str(added),
                    "notes": rng.choice(_NOTES),
                }
            )
        return made

    people = [*rng.sample(PEOPLE, len(PEOPLE)), *((last, first) for first, last in rng.sample(PEOPLE, 9))]
    customers = [one | {"paid": rng.random() < 0.7} for one in records(people[:5], _COMPANIES)]
    write("customers.json", customers)
    write("prospects.json", records(people[5:10], _COMPANIES))
    write("leads.json", records(people[10:20], _COMPANIES))
    intake = records(people[20:], (*_COMPANIES, *_RIVALS))
    write("intake.json", [one | {"score": None} for one in intake])
    write("competitors.json", {"companies": [{"name": one, "reason": "sells scales"} for one in _RIVALS], "people": []})
    stages = [{"name": one, "file": f"{one}.json"} for one in ("leads", "prospects", "customers")]
    write(".crm.json", {"name": "scales", "pipeline": {"stages": stages}})
    return root


def _python() -> str:
    return str(environment("jsoncrm", "jsoncrm[mcp]==1.0.1") / "python")


SERVER = BenchmarkServer(
    "jsoncrm",
    lambda: [_python(), "-c", _RUN, "{port}"],
    make_crm,
    {"HOME": "{world}"},
    use="untouched",
    endpoint="/mcp",
)
