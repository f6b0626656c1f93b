"""A real PostgreSQL server for tests, and databases of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from testbed.postgres import PASSWORD, PostgresMissing, PostgresServer, postgres_running
from trainer_server.ledger.books import Books
from trainer_server.ledger.postgres import PostgresBooks
from trainer_server.ledger.sqlite import SQLiteBooks

__all__ = ["DATABASES", "PASSWORD", "PostgresServer", "open_books", "postgres_server"]

DATABASES = ["sqlite", "postgres"]
"""Kinds of databases that tests of the books run on."""


@contextmanager
def postgres_server(fsync: str = "off") -> Iterator[PostgresServer]:
    """A server; see PostgresServer. The test is skipped where PostgreSQL is not installed."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(postgres_running(fsync))
        except PostgresMissing as missing:
            pytest.skip(str(missing))
        yield server


def open_books(request: pytest.FixtureRequest, directory: Path) -> Books:
    """New books of the kind that is the fixture's parameter, one of DATABASES."""
    if request.param == "sqlite":
        return SQLiteBooks(directory / "rollouts.sqlite")
    server: PostgresServer = request.getfixturevalue("postgres")
    return PostgresBooks(server.new_database())
