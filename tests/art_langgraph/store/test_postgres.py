"""A trajectory store in PostgreSQL: what it does besides what every store does."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from art_langgraph import Scenario, Trajectory, TrajectoryStore
from art_langgraph.auto_pilot.state import State
from art_langgraph.auto_pilot.state_store import StateStore
from art_langgraph.capture import writer as module
from art_langgraph.capture.writer import Writer
from art_langgraph.store import StoreUnavailable
from tests.support.cli import art
from tests.support.patience import PATIENCE, until
from tests.support.servers.postgres import PostgresServer
from trainer_server.common import postgres_files
from trainer_server.engines.vllm.command import free_port
from trainer_server.ledger.postgres import PostgresBooks, PostgresLedger
from trainer_server.wire import ConfigError
from trainer_server.wire.errors import NewerSchema


def run(scenario: str = "a") -> Trajectory:
    return Trajectory(scenario=Scenario(id=scenario, input="x"))


@pytest.fixture
def address(postgres: PostgresServer) -> str:
    return postgres.new_database()


def test_it_may_be_in_the_database_of_the_ledger(address: str) -> None:
    ledger, books = PostgresLedger(address), PostgresBooks(address)
    store, one = TrajectoryStore(address), run()
    store.add(one)
    assert TrajectoryStore(address).get(one.id) == one
    ledger.close()
    books.close()


def test_the_environment_names_the_store_and_commands_read_it(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_STORE", address.replace("postgresql", "POSTGRESQL"))
    one = run("task-7")
    TrajectoryStore().add(one)
    assert one.id in art("trajectories", "list").stdout
    assert one.id in art("trajectories", "show", one.id[:12], "--store", address).stdout
    deleted = art("trajectories", "delete", one.id, "--yes", "--local").stdout
    assert "1 runs deleted in postgresql://127.0.0.1:" in deleted
    assert "hush" not in deleted
    assert (
        "0 runs deleted in postgresql://127.0.0.1:" in art("trajectories", "prune", "--keep-gib", "1", "--yes").stdout
    )
    assert len(TrajectoryStore()) == 0


def test_messages_name_the_database_without_its_password(postgres: PostgresServer) -> None:
    with pytest.raises(ConfigError, match=r"store postgresql://127\.0\.0\.1:\d+/none cannot") as missing:
        TrajectoryStore(postgres.url("none"))
    with pytest.raises(ConfigError, match=r"store postgresql://127\.0\.0\.1:\d+/art cannot") as away:
        TrajectoryStore(f"postgresql://art:secret@127.0.0.1:{free_port()}/art")
    with pytest.raises(ConfigError, match="this is no address of a database") as unreadable:
        TrajectoryStore("postgresql://art:se/cret@127.0.0.1/art")
    for error in (missing, away, unreadable):
        assert "hush" not in str(error.value)
        assert "cret" not in str(error.value)


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "art_langgraph.store.postgres", None)
    with pytest.raises(ConfigError, match=r"needs psycopg .*pip install 'art-langgraph\[postgres\]'"):
        TrajectoryStore("postgresql://localhost/art")


def test_a_store_of_a_newer_release_is_refused(address: str) -> None:
    TrajectoryStore(address)
    with psycopg.connect(address) as db:
        db.execute("UPDATE art_langgraph_store.schema_number SET number = 1000")
    with pytest.raises(NewerSchema):
        TrajectoryStore(address)


def test_a_restart_of_the_database_costs_no_run(
    postgres: PostgresServer, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AGAIN", 0.05)
    store, runs = TrajectoryStore(address), [run(str(number)) for number in range(2)]
    store.add(runs[0])
    writer = Writer(store)
    postgres.stop()
    try:
        with pytest.raises(StoreUnavailable):
            store.add(runs[1])
        writer.note_end(runs[1])
        writer.note_end(runs[0])
    finally:
        postgres.start()
    writer.flush(60)
    assert writer.close() is None
    assert {one.id for one in store} == {one.id for one in runs}


async def test_an_autopilot_whose_lock_is_lost_writes_nothing_more(address: str) -> None:
    store = TrajectoryStore(address)
    first, second = StateStore(store, "p"), StateStore(TrajectoryStore(address), "p")
    async with first.alone():
        first.write(State(policy="p", created=1.0))
        with pytest.raises(ConfigError, match="another autopilot of 'p' runs"):
            async with second.alone():
                pass
        with psycopg.connect(address) as db:
            query = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> %s"
            db.execute(query, (db.info.backend_pid,))
        with pytest.raises(ConfigError, match="is lost"):
            first.write(State(policy="p", created=2.0))
    async with second.alone():
        state = second.state()
    assert state is not None
    assert state.created == 1.0


def test_nothing_of_a_deleted_run_is_in_the_tables_files(postgres: PostgresServer, address: str) -> None:
    store = TrajectoryStore(address)
    gone, kept = (
        Trajectory(scenario=Scenario(id=f"{word}-id", input=word * 9), error=word) for word in ("lost", "left")
    )
    for one in (gone, kept):
        with store.session() as session, session.batch() as batch:
            batch.begin(one)
        store.add(one)
        store.score(one.id, 1.0)
    store.begin_step("p", "s", [gone.id])
    store.add_evaluation("k", 1, [gone.id])
    with psycopg.connect(address, autocommit=True) as db:
        db.execute("ANALYZE")
        assert store.delete([gone.id]) == 1
        db.execute("CHECKPOINT")
    files = [path.read_bytes() for path in (postgres.data / "base").rglob("*") if path.is_file()]
    assert not any(b"lostlost" in content for content in files)
    assert any(b"leftleft" in content for content in files)
    assert (store.trained("p"), store.evaluations("k")) == (set(), {})


def test_what_another_transaction_still_sees_is_not_said_to_be_gone(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_files, "_PATIENCE", 0.0)
    store, gone = TrajectoryStore(address), run()
    store.add(gone)
    with psycopg.connect(address) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        with pytest.raises(
            StoreUnavailable, match=r"still sees 1 deleted rows; when that has ended, run VACUUM \(FULL"
        ):
            store.delete([gone.id])
    store.database.overwrite()
    assert store.delete([gone.id]) == 0


async def test_a_process_that_waits_for_another_to_write_sees_no_old_rows(address: str) -> None:
    store = TrajectoryStore(address)

    def waiting() -> list[tuple[str | None]]:
        query = "SELECT backend_xmin FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return watching.execute(query).fetchall()

    with psycopg.connect(address, autocommit=True) as watching, ThreadPoolExecutor(1) as pool:
        with store.session() as session, session.batch() as batch:
            batch.add(run())
            added = pool.submit(store.add, run())
            await until(waiting)
            assert waiting() == [(None,)]
        added.result(PATIENCE)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12
def test_a_child_of_a_fork_leaves_the_connections_to_its_parent(address: str) -> None:
    store = TrajectoryStore(address)
    before = backend(store)
    child = os.fork()
    if child == 0:
        try:
            own = backend(store)
            store.add(run())
            os._exit(0 if own != before else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert backend(store) == before
    assert len(store) == 1


def backend(store: TrajectoryStore) -> int:
    """The process of the database server that answers."""
    with store.database.connect() as db:
        return int(db.execute("SELECT pg_backend_pid()").fetchone()[0])


def test_the_size_of_a_store_is_that_of_its_rows_alone(address: str) -> None:
    store, runs = TrajectoryStore(address), [run(str(number)) for number in range(3)]
    for one in runs:
        store.add(one)
    with psycopg.connect(address, autocommit=True) as db:
        for _ in range(300):
            db.execute("UPDATE art_langgraph_store.trajectories SET started = started")
    assert store.prune(most_bytes=10_000) == 0


def test_a_connection_has_its_own_settings_whatever_the_database_says(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as db:
        for setting in ("idle_session_timeout", "statement_timeout"):
            db.execute(f"ALTER DATABASE {db.info.dbname} SET {setting} TO '1h'")
    with TrajectoryStore(address).database.connect() as db:
        settings = ("idle_session_timeout", "statement_timeout", "tcp_user_timeout")
        assert [db.execute(f"SHOW {name}").fetchone()[0] for name in settings] == ["0", "0", "25000"]
