"""The address of a database: what cannot be used is said in words that help, and no password is in them."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from tests.support.servers.postgres import PASSWORD, PostgresServer
from trainer_server.common import Home
from trainer_server.engines.vllm.command import free_port
from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.postgres import PostgresBooks, PostgresLedger
from trainer_server.ledger.registry import ledger_factory, open_books, open_ledger, secrets_of
from trainer_server.process import logs
from trainer_server.server.config import ServerConfig
from trainer_server.wire import ConfigError, NewerSchema


def test_the_address_of_a_database_names_ledger_and_books(postgres_url: str, tmp_path: Path) -> None:
    ledger, books = open_ledger(postgres_url, Home(tmp_path)), open_books(postgres_url, Home(tmp_path))
    assert isinstance(ledger, PostgresLedger)
    assert isinstance(books, PostgresBooks)
    assert list(tmp_path.iterdir()) == []
    ledger.close()
    books.close()


@pytest.mark.parametrize(
    "name",
    ["postgresql://art:se/cret@host/name", "postgresql://art:secret@host:secret/name", "postgres://art@[secret/name"],
)
def test_an_address_that_cannot_be_read_is_refused_without_being_quoted(name: str) -> None:
    with pytest.raises(ConfigError, match=r"write postgresql://USER@HOST:PORT/DATABASE") as told:
        ledger_factory(name)
    assert "cret" not in str(told.value)


def test_a_server_that_does_not_answer_is_named() -> None:
    port = free_port()
    with pytest.raises(LedgerError, match=rf"database fleet on 127.0.0.1:{port} cannot be opened: .*refused") as told:
        PostgresLedger(f"postgresql://art:secret-word@127.0.0.1:{port}/fleet")
    assert "secret-word" not in str(told.value)


def test_a_wrong_password_is_named_and_not_printed(postgres: PostgresServer) -> None:
    with pytest.raises(LedgerError, match='password authentication failed for user "art"') as told:
        PostgresLedger(postgres.url(password="wrong-password"))
    assert "wrong-password" not in str(told.value)


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("trainer_server.ledger.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(sys.modules["trainer_server.ledger"], "postgres")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"needs psycopg \(.*\): pip install 'art-langgraph\[postgres\]'"):
        ledger_factory("postgresql://art@host/name")


def test_tables_of_a_newer_release_are_left_as_they_are(postgres_url: str) -> None:
    PostgresLedger(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("UPDATE art_langgraph.schemas SET number = 99 WHERE part = 'ledger'")
    with pytest.raises(NewerSchema, match=r"the ledger in the PostgreSQL database test_\d+ on .* has schema 99"):
        PostgresLedger(postgres_url)


def test_a_database_of_another_encoding_is_refused(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        db.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(LedgerError, match="has the encoding LATIN1"):
        PostgresLedger(postgres.url("latin"))


def test_the_password_of_an_address_is_a_secret_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    url = f"postgresql://art:{quote(PASSWORD, safe='')}@host/name?password=an-other-one"
    hidden = logs.Secrets()
    hidden.keep(*secrets_of(url))
    for secret in (PASSWORD, quote(PASSWORD, safe=""), "an-other-one", url):
        assert secret not in hidden.hide_secrets(f"before {secret} after")
    assert secrets_of("sqlite") == []
    with caplog.at_level(logging.INFO):
        logging.getLogger().info("%s", ServerConfig(home=Home(Path("/h")), ledger=url))
    assert "an-other-one" not in caplog.text
