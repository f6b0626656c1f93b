"""What servers share in a PostgreSQL database: which servers there are, the adapter slots that they hold, leases, and
the meanings of names. The database's clock counts, whatever the servers say.

Each step is one transaction, and what a server was doing is in rows that have its id. So a server that is killed leaves
nothing behind that the next transaction of another server does not put right, and a restart of the database changes
nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.fleet import Beat, Claim, Fleet, Key
from trainer_server.ledger.postgres.database import AsyncTransactions, Db
from trainer_server.wire.text import storable, writable

log = logging.getLogger("trainer_server")

_FIRST = """
CREATE TABLE gateways (
    id UUID PRIMARY KEY, name TEXT NOT NULL,
    seen TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), since TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE slots (
    policy TEXT COLLATE "C" NOT NULL, version INTEGER NOT NULL,
    used TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    cleared_by UUID REFERENCES gateways ON DELETE SET NULL,
    PRIMARY KEY (policy, version)
);
CREATE SEQUENCE hold_numbers;
CREATE TABLE holds (
    gateway UUID NOT NULL REFERENCES gateways ON DELETE CASCADE,
    policy TEXT COLLATE "C" NOT NULL, version INTEGER NOT NULL, busy BOOLEAN NOT NULL DEFAULT true,
    number BIGINT NOT NULL DEFAULT nextval('hold_numbers'),
    PRIMARY KEY (gateway, policy, version),
    FOREIGN KEY (policy, version) REFERENCES slots
);
CREATE TABLE leases (
    rollout TEXT COLLATE "C" NOT NULL, name TEXT COLLATE "C" NOT NULL,
    policy TEXT COLLATE "C" NOT NULL, version INTEGER NOT NULL, expires TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (rollout, name)
);
CREATE INDEX leases_version ON leases (policy, version, expires);
CREATE INDEX leases_expires ON leases (expires);
CREATE TABLE meanings (policy TEXT COLLATE "C" PRIMARY KEY, meaning TEXT NOT NULL);
"""
"""`since`: from when on a server has beaten without a gap. `cleared_by`: the server for which a slot is cleared: no
server begins to hold it."""
_TERM = 15.0
"""Seconds without a beat after which a server holds nothing any more."""
_GAP = 5.0
"""Seconds between two beats after which a server cannot judge whether others are dead: the database was away for it."""
_FRESH = 0.75
"""A lease that has this part of its time left is not renewed: then a call writes nothing."""
_SLOTS = 0x6172_7404
"""Key of the advisory lock that is held while slots change."""
_HAS_LEASE = (
    "EXISTS (SELECT 1 FROM leases WHERE leases.policy = slots.policy AND leases.version = slots.version "
    "AND leases.expires > clock_timestamp())"
)
_HAS_NAME = (
    "EXISTS (SELECT 1 FROM meanings WHERE meanings.policy = slots.policy AND slots.version::text IN "
    "(meaning::jsonb->>'newest', meaning::jsonb->>'promoted', meaning::jsonb->'candidate'->>'version'))"
)
_BUSY = "EXISTS (SELECT 1 FROM holds WHERE (holds.policy, holds.version) = (slots.policy, slots.version) AND busy)"
_HAS_HOLD = "EXISTS (SELECT 1 FROM holds WHERE (holds.policy, holds.version) = (slots.policy, slots.version))"
_LEAST_NEEDED = f"""
UPDATE slots SET cleared_by = %s WHERE (policy, version) = (
    SELECT policy, version FROM slots WHERE cleared_by IS NULL ORDER BY {_BUSY}, {_HAS_LEASE}, {_HAS_NAME}, used LIMIT 1
)
"""
"""The order is that of `LocalSlots`: idle ones first, of these the ones that no rollout is pinned to, then old ones."""


class _Rows:
    """Rows that servers share.

    Args:
        transactions: The database.
    """

    def __init__(self, transactions: AsyncTransactions) -> None:
        self.transactions = transactions


H = TypeVar("H", bound=_Rows)
P = ParamSpec("P")
T = TypeVar("T")


def _transaction(work: Callable[Concatenate[H, Db, P], T]) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """Makes a coroutine method of one that is called with a connection in a transaction, on a thread."""

    async def run(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.transactions.run(lambda db: work(self, db, *args, **kwargs))

    return run


class PostgresGateways(_Rows):
    """Servers and the slots that they hold: `SharedGateways`.

    Args:
        transactions: The database.
        name: This server, for people who read the table.
    """

    term = _TERM

    def __init__(self, transactions: AsyncTransactions, name: str) -> None:
        super().__init__(transactions)
        self._name, self._id = name, uuid.uuid4()

    @_transaction
    def beat(self, db: Db, busy: Collection[Key]) -> Beat:
        db.execute("SET LOCAL synchronous_commit TO off")  # a beat that is lost is followed by another one
        alive = (
            "UPDATE gateways SET seen = clock_timestamp(), since = CASE WHEN seen < clock_timestamp() - "
            "%s * interval '1 second' THEN clock_timestamp() ELSE since END WHERE id = %s"
        )
        expelled = db.execute(alive, (_GAP, self._id)).rowcount == 0
        if expelled:
            db.execute("INSERT INTO gateways (id, name) VALUES (%s, %s)", (self._id, self._name))
        keys = _arrays(busy)
        inside = "(policy, version) IN (SELECT * FROM unnest(%s::text[], %s::integer[]))"
        db.execute(f"UPDATE holds SET busy = NOT busy WHERE gateway = %s AND busy <> ({inside})", (self._id, *keys))
        db.execute(f"UPDATE slots SET used = clock_timestamp() WHERE {inside}", keys)
        rows = db.execute(
            "SELECT slots.policy, slots.version, cleared_by IS NOT NULL, number FROM slots "
            "LEFT JOIN holds ON (holds.policy, holds.version) = (slots.policy, slots.version) AND gateway = %s",
            (self._id,),
        ).fetchall()
        slots = frozenset((policy, version) for policy, version, _, _ in rows)
        back = {(policy, version): number for policy, version, cleared, number in rows if cleared and number}
        return Beat(expelled, slots, back)

    @_transaction
    def claim(self, db: Db, key: Key, capacity: int, *, clear: bool) -> Claim:
        if not self._lock_slots(db):
            return Claim(expelled=True)
        row = db.execute("SELECT cleared_by FROM slots WHERE (policy, version) = (%s, %s)", key).fetchone()
        if row is not None and row[0] is not None:
            return Claim()  # once it is cleared, it can be made again
        if row is not None:
            db.execute("UPDATE slots SET used = clock_timestamp() WHERE (policy, version) = (%s, %s)", key)
            return self._hold(db, key)
        if _number(db, "SELECT count(*) FROM slots") < capacity:
            db.execute("INSERT INTO slots (policy, version) VALUES (%s, %s)", key)
            return self._hold(db, key)
        empty = db.execute(f"SELECT policy, version FROM slots WHERE cleared_by = %s AND NOT {_HAS_HOLD}", (self._id,))
        if empty_slots := empty.fetchall():
            return Claim(empty_slots=tuple((policy, version) for policy, version in empty_slots))
        if clear:
            db.execute(_LEAST_NEEDED, (self._id,))
        return Claim()

    @_transaction
    def settle(self, db: Db, closed_keys: Collection[Key]) -> None:
        if self._lock_slots(db):
            inside = "(policy, version) IN (SELECT * FROM unnest(%s::text[], %s::integer[]))"
            values = (self._id, *_arrays(closed_keys))
            db.execute(f"UPDATE slots SET cleared_by = NULL WHERE cleared_by = %s AND NOT {inside}", values)

    @_transaction
    def give_back(self, db: Db, key: Key, number: int) -> None:
        self._lock_slots(db)
        query = "DELETE FROM holds WHERE gateway = %s AND (policy, version) = (%s, %s) AND number = %s"
        db.execute(query, (self._id, *key, number))

    @_transaction
    def drop(self, db: Db, key: Key) -> None:
        self._lock_slots(db)
        db.execute("DELETE FROM holds WHERE gateway = %s AND (policy, version) = (%s, %s)", (self._id, *key))

    @_transaction
    def close(self, db: Db, key: Key) -> str | None:
        if not self._lock_slots(db):
            return "this server was away from the database; ask again"
        leases = "SELECT count(*) FROM leases WHERE (policy, version) = (%s, %s) AND expires > clock_timestamp()"
        if _number(db, leases, key):
            return "it is in use by a rollout; delete it when that has ended"
        insert = (
            "INSERT INTO slots (policy, version, cleared_by) VALUES (%s, %s, %s) ON CONFLICT (policy, version) "
            "DO UPDATE SET cleared_by = excluded.cleared_by "
            "WHERE slots.cleared_by IS NULL OR slots.cleared_by = excluded.cleared_by"
        )
        if db.execute(insert, (*key, self._id)).rowcount == 0:
            return "another server is unloading it; ask again"
        return None

    @_transaction
    def holders(self, db: Db, key: Key) -> int:
        self._lock_slots(db)
        return _number(db, "SELECT count(*) FROM holds WHERE (policy, version) = (%s, %s)", key)

    @_transaction
    def delete_slot(self, db: Db, key: Key) -> None:
        if self._lock_slots(db):
            values = (*key, self._id)
            db.execute(
                f"DELETE FROM slots WHERE (policy, version) = (%s, %s) AND cleared_by = %s AND NOT {_HAS_HOLD}", values
            )

    @_transaction
    def clear(self, db: Db) -> None:
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_SLOTS,))
        db.execute("DELETE FROM gateways")
        db.execute("DELETE FROM slots")

    async def leave(self) -> None:
        def work(db: Db) -> None:
            db.execute("SELECT pg_advisory_xact_lock(%s)", (_SLOTS,))
            db.execute("DELETE FROM gateways WHERE id = %s", (self._id,))

        try:
            await self.transactions.run(work)
        except LedgerError as error:
            log.warning("the others have to wait until they notice that this server has ended: %s", error)
        finally:
            self.transactions.close()

    def _lock_slots(self, db: Db) -> bool:
        """Slots change in this transaction alone, and dead servers hold none. Returns whether this server is counted
        among the living."""
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_SLOTS,))
        db.execute(
            "DELETE FROM gateways WHERE seen < clock_timestamp() - %s * interval '1 second' AND id <> %s AND EXISTS "
            "(SELECT 1 FROM gateways WHERE id = %s AND since < clock_timestamp() - %s * interval '1 second' "
            "AND seen > clock_timestamp() - %s * interval '1 second')",
            (_TERM, self._id, self._id, _TERM, _GAP),
        )
        return db.execute("SELECT 1 FROM gateways WHERE id = %s", (self._id,)).fetchone() is not None

    def _hold(self, db: Db, key: Key) -> Claim:
        query = (
            "INSERT INTO holds VALUES (%s, %s, %s) "
            "ON CONFLICT (gateway, policy, version) DO UPDATE SET busy = true, number = nextval('hold_numbers')"
        )
        db.execute(query, (self._id, *key))
        return Claim(granted=True)


class PostgresPins(_Rows):
    """Leases and the meanings of names: `SharedPins`."""

    @_transaction
    def pin(self, db: Db, rollout: str, name: str, key: Key, seconds: float) -> int:
        fresh = (
            "SELECT version FROM leases WHERE rollout = %s AND name = %s "
            "AND expires > clock_timestamp() + %s * interval '1 second'"
        )
        renew = (
            "INSERT INTO leases VALUES (%s, %s, %s, %s, clock_timestamp() + %s * interval '1 second') "
            "ON CONFLICT (rollout, name) DO UPDATE SET expires = excluded.expires, version = "
            "CASE WHEN leases.expires < clock_timestamp() THEN excluded.version ELSE leases.version END "
            "RETURNING version"
        )
        row = db.execute(fresh, (_id(rollout), name, seconds * _FRESH)).fetchone()
        row = row or db.execute(renew, (_id(rollout), name, *key, seconds)).fetchone()
        assert row is not None
        return int(row[0])

    @_transaction
    def held_version(self, db: Db, rollout: str, name: str) -> int | None:
        query = "SELECT version FROM leases WHERE rollout = %s AND name = %s AND expires >= clock_timestamp()"
        row = db.execute(query, (_id(rollout), name)).fetchone()
        return int(row[0]) if row else None

    @_transaction
    def release(self, db: Db, rollouts: Collection[str]) -> None:
        db.execute("DELETE FROM leases WHERE rollout = ANY(%s)", ([_id(rollout) for rollout in rollouts],))

    @_transaction
    def purge(self, db: Db) -> None:
        db.execute("DELETE FROM leases WHERE expires < clock_timestamp()")

    @_transaction
    def publish(self, db: Db, meanings: Mapping[str, str | None]) -> None:
        removals = [policy for policy, meaning in meanings.items() if meaning is None]
        db.execute("DELETE FROM meanings WHERE policy = ANY(%s)", (removals,))
        query = "INSERT INTO meanings VALUES (%s, %s) ON CONFLICT (policy) DO UPDATE SET meaning = excluded.meaning"
        with db.cursor() as cursor:
            cursor.executemany(query, [entry for entry in meanings.items() if entry[1] is not None])

    @_transaction
    def meaning(self, db: Db, policy: str) -> str | None:
        row = db.execute("SELECT meaning FROM meanings WHERE policy = %s", (_id(policy),)).fetchone()
        return str(row[0]) if row else None

    @_transaction
    def meanings(self, db: Db) -> dict[str, str]:
        return {str(policy): str(meaning) for policy, meaning in db.execute("SELECT policy, meaning FROM meanings")}


def _id(text: str) -> str:
    return storable(writable(text))


def postgres_fleet(url: str) -> Fleet:
    """What the servers of a database share.

    Args:
        url: `postgresql://…`, as libpq reads it.

    Raises:
        ConfigError, LedgerError, NewerSchema: The database cannot be used; `Database` says why.
    """
    transactions = AsyncTransactions(url, "gateways", [_FIRST])
    return Fleet(
        PostgresGateways(transactions, f"process {os.getpid()} on {socket.gethostname()}"), PostgresPins(transactions)
    )


def _number(db: Db, query: Any, values: tuple[Any, ...] = ()) -> int:
    row = db.execute(query, values).fetchone()
    return int(row[0]) if row else 0


def _arrays(keys: Collection[Key]) -> tuple[list[str], list[int]]:
    return [policy for policy, _ in keys], [version for _, version in keys]
