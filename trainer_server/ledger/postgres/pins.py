"""Leases and the meanings of names in a PostgreSQL database, whose clock counts, whatever the servers say."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainer_server.ledger.postgres.async_transactions import AsyncTransactions
from trainer_server.ledger.postgres.database import Db
from trainer_server.ledger.storage.fleet import Key
from trainer_server.wire.text import storable, writable

_FRESH = 0.75
"""A lease that has this part of its time left is not renewed: then a call writes nothing."""


class PostgresPins:
    """See `SharedPins`.

    Args:
        transactions: The database.
    """

    def __init__(self, transactions: AsyncTransactions) -> None:
        self._transactions = transactions

    async def pin(self, rollout: str, name: str, key: Key, seconds: float) -> int:
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

        def work(db: Db) -> int:
            row = db.execute(fresh, (_id(rollout), name, seconds * _FRESH)).fetchone()
            row = row or db.execute(renew, (_id(rollout), name, *key, seconds)).fetchone()
            assert row is not None
            return int(row[0])

        return await self._transactions.run(work)

    async def held_version(self, rollout: str, name: str) -> int | None:
        query = "SELECT version FROM leases WHERE rollout = %s AND name = %s AND expires >= clock_timestamp()"
        row = await self._transactions.run(lambda db: db.execute(query, (_id(rollout), name)).fetchone())
        return int(row[0]) if row else None

    async def release(self, rollouts: Collection[str]) -> None:
        ids = [_id(rollout) for rollout in rollouts]
        await self._transactions.run(lambda db: db.execute("DELETE FROM leases WHERE rollout = ANY(%s)", (ids,)))

    async def purge(self) -> None:
        await self._transactions.run(lambda db: db.execute("DELETE FROM leases WHERE expires < clock_timestamp()"))

    async def publish(self, meanings: Mapping[str, str | None]) -> None:
        gone = [policy for policy, meaning in meanings.items() if meaning is None]
        known = [(policy, meaning) for policy, meaning in meanings.items() if meaning is not None]

        def work(db: Db) -> None:
            db.execute("DELETE FROM meanings WHERE policy = ANY(%s)", (gone,))
            with db.cursor() as cursor:
                query = (
                    "INSERT INTO meanings VALUES (%s, %s) ON CONFLICT (policy) DO UPDATE SET meaning = excluded.meaning"
                )
                cursor.executemany(query, known)

        await self._transactions.run(work)

    async def meaning(self, policy: str) -> str | None:
        query = "SELECT meaning FROM meanings WHERE policy = %s"
        row = await self._transactions.run(lambda db: db.execute(query, (_id(policy),)).fetchone())
        return str(row[0]) if row else None

    async def meanings(self) -> dict[str, str]:
        rows = await self._transactions.run(lambda db: db.execute("SELECT policy, meaning FROM meanings").fetchall())
        return {str(policy): str(meaning) for policy, meaning in rows}


def _id(text: str) -> str:
    return storable(writable(text))
