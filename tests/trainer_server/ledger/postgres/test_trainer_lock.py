"""The lock: one server at a time trains on a database, and it stays so whatever may happen to the database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.support.patience import PATIENCE
from tests.support.servers.postgres import PostgresServer, postgres_server
from trainer_server.ledger.postgres import TrainerLock
from trainer_server.ledger.postgres import trainer_lock as module

_HOLDER = """
import os, time
from trainer_server.ledger.postgres import TrainerLock
lock = TrainerLock(os.environ["ART_LEDGER"], "/first")
print(lock.acquire(), flush=True)
lock.watch(lambda: print(lock.loss))
time.sleep(1000)
"""


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


def watched(lock: TrainerLock) -> list[str | None]:
    """Why it was lost, as soon as it is."""
    losses: list[str | None] = []
    lock.watch(lambda: losses.append(lock.loss))
    return losses


def test_one_of_two_trains_until_it_ends(postgres_url: str) -> None:
    first, second = TrainerLock(postgres_url, "/first"), TrainerLock(postgres_url, "/second")
    assert first.acquire()
    assert not second.acquire()
    assert second.holder().endswith("home /first")
    first.release()
    assert second.acquire()
    assert second.holder().endswith("home /second")
    second.release()


def test_servers_of_other_databases_do_not_matter(postgres: PostgresServer) -> None:
    locks = [TrainerLock(postgres.new_database(), "/home") for _ in range(2)]
    assert [lock.acquire() for lock in locks] == [True, True]
    for lock in locks:
        lock.release()


def test_a_database_of_a_release_with_elections_has_one_trainer_too(postgres_url: str) -> None:
    lock = TrainerLock(postgres_url, "/home")
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("INSERT INTO art_langgraph.elected VALUES ('process 1, home /old', 1.0, 'http://10.0.0.1:8400')")
        db.execute("SELECT pg_advisory_lock(%s)", (0x6172_7403,))
        assert not lock.acquire()
        assert lock.holder() == "process 1, home /old"
    until(lock.acquire)
    lock.release()


def test_the_lock_of_a_server_that_is_killed_is_free(postgres_url: str) -> None:
    variables = {**os.environ, "ART_LEDGER": postgres_url}
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE, text=True, env=variables)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    second = TrainerLock(postgres_url, "/second")
    assert not second.acquire()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    until(second.acquire)
    second.release()


def test_the_lock_is_taken_again_when_the_database_restarts(
    own: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_INTERVAL", 0.05)
    url = own.new_database()
    first, second = TrainerLock(url, "/first"), TrainerLock(url, "/second")
    assert first.acquire()
    losses = watched(first)
    own.stop()
    own.start()
    until(lambda: first._db is not None and not first._db.closed)
    assert not second.acquire()
    assert losses == []
    first.release()
    assert second.acquire()
    second.release()


def test_who_comes_too_late_after_a_broken_connection_is_told(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_INTERVAL", 0.5)
    first, second = TrainerLock(postgres_url, "/first"), TrainerLock(postgres_url, "/second")
    assert first.acquire()
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        until(second.acquire)
    losses = watched(first)
    until(lambda: bool(losses))
    assert "another server trains" in str(losses[0])
    assert "home /second" in str(losses[0])
    first.release()
    second.release()


def test_without_a_word_from_the_database_nobody_trains_for_long(
    own: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_INTERVAL", 0.05)
    monkeypatch.setattr(module, "_TERM", 0.5)
    first = TrainerLock(own.new_database(), "/first")
    assert first.acquire()
    losses = watched(first)
    own.stop()
    until(lambda: bool(losses))
    assert "another server may train" in str(losses[0])
    first.release()
