"""Parts of runs are put together by run. They lie on disk meanwhile: a run's parts may be anywhere in a large file."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self, TypeAlias

from art_langgraph.traces.problems import Unreadable
from trainer_server.wire import ConfigError

_SCHEMA = """
CREATE TABLE parts (run TEXT, refers TEXT, line INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE ids (id TEXT PRIMARY KEY, run TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class RunPart:
    """A part of a run: one span, one score, one conversation."""

    record: dict[str, Any]
    run: str | None = None
    """What all parts of a run have in common; None: the run that has the part `refers`."""
    id: str | None = None
    """By which other parts refer to it."""
    refers: str | None = None
    line: int = 0


Parts: TypeAlias = "Iterator[RunPart | Callable[[], RunPart | Parts]]"
"""Parts of a record. What is called makes one or more: a problem there leaves the parts beside it as they are."""


class Grouping:
    """Collects parts, and gives them back run by run, in the order in which the runs began in the file.

    Raises:
        ConfigError: The directory for temporary files cannot be written.
    """

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="art-import-")
        self._db = sqlite3.connect(Path(self._directory.name) / "parts.sqlite")
        self._db.execute("PRAGMA journal_mode=OFF")
        self._db.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()
        self._directory.cleanup()

    def add(self, part: RunPart, line: int) -> None:
        """Adds a part, which was read from a line.

        Raises:
            Unreadable: What should be an id is none.
        """
        run, own, refers = map(_id, (part.run, part.id, part.refers))
        try:
            record = json.dumps(part.record, default=str)
            self._db.execute("INSERT INTO parts VALUES (?, ?, ?, ?)", (run, refers, line, record))
            if own is not None and run is not None:
                self._db.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (own, run))
        except sqlite3.Error as error:
            raise ConfigError(
                f"{self._directory.name} cannot be written: {error}. Name a directory with more space by TMPDIR"
            ) from None

    def runs(self) -> Iterator[tuple[str | None, list[RunPart]]]:
        """Each run's key and its parts. The parts that refer to nothing in the file come last, under the key None."""
        self._db.executescript(
            """
            UPDATE parts SET run = (SELECT run FROM ids WHERE id = refers) WHERE run IS NULL;
            CREATE INDEX parts_run ON parts (run);
            CREATE TABLE began AS SELECT run, min(rowid) AS first FROM parts WHERE run IS NOT NULL GROUP BY run;
            """
        )
        rows = self._db.execute(
            "SELECT parts.run, line, record FROM parts LEFT JOIN began ON began.run = parts.run "
            "ORDER BY first IS NULL, first, parts.rowid"
        )
        for run, parts in itertools.groupby(rows, key=lambda row: row[0]):
            yield run, [RunPart(json.loads(record), run=run, line=line) for _, line, record in parts]


def _id(value: object) -> str | None:
    """An id as text: files have numbers too."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise Unreadable("records with an id that is neither a text nor a number")
