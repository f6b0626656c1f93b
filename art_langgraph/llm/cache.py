"""A cache on disk for answers of language models, so that the same question is paid for once."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from trainer_server.common import Home
from trainer_server.common.home import create_private
from trainer_server.wire import ConfigError

log = logging.getLogger("art_langgraph")

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS answers (digest TEXT PRIMARY KEY, time REAL NOT NULL, answer TEXT NOT NULL) STRICT"
)


class AnswerCache:
    """A SQLite file of answers, by the digest of their question.

    Several processes may use it at once. When it is deleted, answers are asked and paid for again. When it cannot be
    read or written, questions are asked without it, and a warning says so.

    Args:
        path: The file, created if it is missing; None: `llm.sqlite` under ART_CACHE.

    Raises:
        ConfigError: The file cannot be made or opened.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else Home.find().cache / "llm.sqlite"
        try:
            create_private(self.path)  # questions are made of what people and models wrote
            with closing(self._open()) as db, db:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the cache of answers {self.path} cannot be opened: {error}. Name another file with cache=…, or "
                "cache=None for no cache"
            ) from error

    def get(self, digest: str) -> str | None:
        """The JSON of an answer; None where the question is new. digest: see `question`."""
        try:
            with closing(self._open()) as db:
                row = db.execute("SELECT answer FROM answers WHERE digest = ?", (digest,)).fetchone()
        except sqlite3.Error as error:
            log.warning("the cache of answers %s cannot be read, and the model is asked: %s", self.path, error)
            return None
        return None if row is None else str(row[0])

    def put(self, digest: str, answer: str) -> None:
        """Stores the JSON of an answer. It replaces an earlier answer to the same question."""
        try:
            with closing(self._open()) as db, db:
                db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (digest, time.time(), answer))
        except sqlite3.Error as error:
            log.warning("the cache of answers %s cannot be written, and keeps no answer: %s", self.path, error)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30)


def question(facts: Mapping[str, Any]) -> str:
    """SHA-256 digest of a question. facts: everything that the answer depends on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
