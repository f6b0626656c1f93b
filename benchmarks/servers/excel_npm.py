"""@negokaz/excel-mcp-server on a directory with a school's workbook: pupils, marks, timetable."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx
from benchmarks.servers.words import CITIES, PEOPLE
from benchmarks.servers.workbook import Cell, write_workbook

_SUBJECTS = ("Mathematics", "History", "Biology", "Music", "Chemistry", "Geography")


def make_school(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the rows.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"school-{seed}"), where / "school"
    root.mkdir()
    people = [" ".join(one) for one in rng.sample(PEOPLE, 12)]
    pupils: list[list[Cell]] = [["Pupil", "Class", "Born", "City"]]
    pupils += [
        [one, f"{rng.randrange(5, 9)}{rng.choice('ab')}", rng.randrange(2010, 2016), rng.choice(CITIES)]
        for one in people
    ]
    marks: list[list[Cell]] = [["Pupil", *_SUBJECTS]]
    marks += [[one, *(rng.randrange(1, 7) for _ in _SUBJECTS)] for one in people]
    hours: list[list[Cell]] = [["Hour", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]]
    hours += [[f"{hour}:00", *(rng.choice(_SUBJECTS) for _ in range(5))] for hour in range(8, 14)]
    write_workbook(root / "school.xlsx", {"Pupils": pupils, "Marks": marks, "Timetable": hours})
    return root


SERVER = BenchmarkServer(
    "excel-npm",
    lambda: npx("@negokaz/excel-mcp-server@0.12.0"),
    make_school,
    npm_cache(),
)
