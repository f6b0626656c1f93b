"""The election: one server at a time uses a database, and which one it is survives what may happen to the database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.support.patience import PATIENCE
from tests.support.servers.postgres import PostgresServer, postgres_server
from trainer_server.ledger.postgres import Election
from trainer_server.ledger.postgres import election as module

_HOLDER = """
import os, time
from trainer_server.ledger.postgres import Election
election = Election(os.environ["ART_LEDGER"], "/first")
print(election.stand(), flush=True)
election.watch(print)
time.sleep(1000)
"""
Make = Callable[[], Election]


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    """A server that a test stops."""
    with postgres_server() as running:
        yield running


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def watched(election: Election) -> list[str]:
    """Why it was lost, as soon as it is."""
    told: list[str] = []
    election.watch(told.append)
    return told


def test_one_of_two_is_elected_until_it_resigns(postgres_url: str) -> None:
    first, second = Election(postgres_url, "/first"), Election(postgres_url, "/second")
    assert first.stand()
    assert not second.stand()
    assert second.leader_name().endswith("home /first")
    waiting = threading.Thread(target=second.wait)
    waiting.start()
    first.resign()
    waiting.join(PATIENCE)
    assert second.leader_name().endswith("home /second")
    second.resign()


def test_servers_of_other_databases_do_not_matter(postgres: PostgresServer) -> None:
    elections = [Election(postgres.new_database(), "/home") for _ in range(2)]
    assert [election.stand() for election in elections] == [True, True]
    for election in elections:
        election.resign()


def test_the_database_has_another_server_elected_when_one_is_killed(postgres_url: str) -> None:
    variables = {**os.environ, "ART_LEDGER": postgres_url}
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE, text=True, env=variables)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    second = Election(postgres_url, "/second")
    assert not second.stand()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    second.wait()
    second.resign()


def test_who_is_elected_stays_so_when_the_database_restarts(
    own: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_INTERVAL", 0.05)
    url = own.new_database()
    first, second = Election(url, "/first"), Election(url, "/second")
    assert first.stand()
    told = watched(first)
    own.stop()
    own.start()
    until(lambda: first._db is not None and not first._db.closed)
    assert not second.stand()
    assert told == []
    first.resign()
    assert second.stand()
    second.resign()


def test_who_comes_too_late_after_a_broken_connection_is_told(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_INTERVAL", 0.5)
    first, second = Election(postgres_url, "/first"), Election(postgres_url, "/second")
    assert first.stand()
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        until(second.stand)
    told = watched(first)
    until(lambda: bool(told))
    assert "another server was elected" in told[0]
    assert "home /second" in told[0]
    first.resign()
    second.resign()


def test_without_a_word_from_the_database_nobody_stays_elected(
    own: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_INTERVAL", 0.05)
    monkeypatch.setattr(module, "_TERM", 0.5)
    first = Election(own.new_database(), "/first")
    assert first.stand()
    told = watched(first)
    own.stop()
    until(lambda: bool(told))
    assert "another server may be elected" in told[0]
    first.resign()


def test_after_a_restart_of_the_database_the_others_leave_the_elected_one_time(own: PostgresServer) -> None:
    url = own.new_database()
    first, second = Election(url, "/first"), Election(url, "/second")
    assert not second.stand(patient=True), "the database has just started"
    assert first.stand()
    first.announce("http://10.0.0.1:8400")
    assert second.address() == "http://10.0.0.1:8400"
    assert second.local_host() == "127.0.0.1"
    first.resign()
    second.resign()
