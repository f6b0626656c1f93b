"""Fixtures of the server's tests: databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.postgres import DATABASES, PostgresServer, open_books, postgres_server
from trainer_server.ledger.books import Books

pytest.register_assert_rewrite("tests.support.homes.ledger_tests")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server."""
    with postgres_server() as running:
        yield running


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """The address of an empty database."""
    return postgres.new_database()


@pytest.fixture(params=DATABASES)
def books(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Books]:
    """Empty books, in SQLite and in PostgreSQL."""
    opened = open_books(request, tmp_path)
    yield opened
    opened.close()
