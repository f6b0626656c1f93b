"""A cache on disk for answers of language models, so that the same question is paid for once."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from trainer_server.wire import Home
from trainer_server.wire.home import create_private

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS answers (digest TEXT PRIMARY KEY, time REAL NOT NULL, answer TEXT NOT NULL) STRICT"
)


class AnswerCache:
    """A SQLite file of answers, by the digest of their question.

    Several processes may use it at once. When it is deleted, answers are asked and paid for again.

    Args:
        path: The file, created if it is missing; None: `llm.sqlite` under ART_CACHE.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else Home.find().cache / "llm.sqlite"
        create_private(self.path)  # questions are made of what people and models wrote
        with closing(self._open()) as db, db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(_SCHEMA)

    def get(self, digest: str) -> str | None:
        """The JSON of an answer; None where the question is new. digest: see `question`."""
        with closing(self._open()) as db:
            row = db.execute("SELECT answer FROM answers WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, digest: str, answer: str) -> None:
        """Stores the JSON of an answer. It replaces an earlier answer to the same question."""
        with closing(self._open()) as db, db:
            db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (digest, time.time(), answer))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30)


def question(facts: Mapping[str, Any]) -> str:
    """SHA-256 digest of a question. facts: everything that the answer depends on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
