"""Answers of language models on disk: the same question is paid for once."""

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

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS answers (digest TEXT PRIMARY KEY, time REAL NOT NULL, answer TEXT NOT NULL) STRICT"
)


class AnswerCache:
    """A file of answers by the digest of their question; by default `llm.sqlite` in the cache under ART_HOME.

    Several processes may use it at once. Deleting it costs money, nothing else.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else Home.find().cache / "llm.sqlite"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._open()) as db, db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(_SCHEMA)

    def get(self, digest: str) -> str | None:
        """The answer's JSON, or None."""
        with closing(self._open()) as db:
            found = db.execute("SELECT answer FROM answers WHERE digest = ?", (digest,)).fetchone()
        return None if found is None else str(found[0])

    def put(self, digest: str, answer: str) -> None:
        """Keeps an answer's JSON; a later one for the same question takes its place."""
        with closing(self._open()) as db, db:
            db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (digest, time.time(), answer))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30)


def question(facts: Mapping[str, Any]) -> str:
    """The digest of everything that an answer depends on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
