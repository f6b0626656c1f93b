"""What rollouts were registered with, and the rewards that they were given. The ledger has what they did."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

from trainer_server.common.jsonl import from_json, to_json
from trainer_server.ledger.base import RETENTION_DAYS
from trainer_server.ledger.books import Books, Connection, chunks
from trainer_server.ledger.commits import delete_in_slices
from trainer_server.ledger.redaction import Redaction
from trainer_server.ledger.run_rows import note_reward, note_scenario, note_spec, row_of
from trainer_server.wire import GivenReward, Reward, RolloutListed, RolloutSpec
from trainer_server.wire.text import writable

_CACHE_SIZE = 10_000
"""Rollouts whose registration and owner are kept in memory, so that a request of theirs reads no file."""
_MOST_CHARACTERS = 8000
"""Of a registration that is kept in memory, as JSON."""


class RolloutRepository:
    """Registrations and rewards of rollouts. Any thread may call it.

    All methods raise LedgerError when the database cannot be read or written.

    Args:
        books: The database.
        redaction: Changes texts before they are written.
    """

    def __init__(self, books: Books, redaction: Redaction | None = None) -> None:
        self._books = books
        self._redaction = redaction or Redaction()
        self._specs: OrderedDict[str, RolloutSpec | None] = OrderedDict()
        """By rollout: what `known_spec` answers. The one that was asked for last stands last."""
        self._owners: OrderedDict[str, str | None] = OrderedDict()
        """By rollout: the token that used it first, None for none. An owner stays, also where others write."""
        self._lock = threading.Lock()
        """Held while a registration is read or written, and remembered."""

    def register(self, rollout_id: str, spec: RolloutSpec) -> None:
        """Records what a rollout is, in place of what was recorded before. When this returns, it survives a crash."""
        spec = self._redaction.spec(spec)
        with self._lock:
            with self._books.writing() as db:
                _touch(db, rollout_id)
                db.execute("UPDATE rollouts SET spec = ? WHERE id = ?", (to_json(spec), writable(rollout_id)))
                note_spec(db, rollout_id, spec)
            self._remember(rollout_id, spec)

    def spec(self, rollout_id: str) -> RolloutSpec | None:
        """What a rollout was registered with; None where it was not."""
        with self._lock:
            with self._books.reading() as db:
                spec = _spec(db, rollout_id)
            self._remember(rollout_id, spec)
        return spec

    def known_spec(self, rollout_id: str) -> tuple[bool, RolloutSpec | None]:
        """Whether requests need not read the database, and what they need of `spec`: scenario and metadata, which may
        be large, are left out."""
        try:
            self._specs.move_to_end(rollout_id)
            return True, self._specs[rollout_id]
        except KeyError:
            return False, None

    def begin(self, rollout_ids: Sequence[str], token: str, earlier: Collection[str]) -> dict[str, str | None]:
        """The tokens that used rollouts first: this one, where none has. When this returns, that survives a crash, and
        all servers of the database agree.

        Args:
            rollout_ids: Ids of the rollouts.
            token: Name of the token that uses them now.
            earlier: Those of them that have done something already.

        Returns:
            By id: the token; None: the rollout began before there were owners.
        """
        owners: dict[str, str | None] = {}
        with self._lock, self._books.writing() as db:
            for rollout_id in rollout_ids:
                exists, owner = _owner(db, rollout_id)
                if not exists:
                    _touch(db, rollout_id)
                    owner = None if rollout_id in earlier else token
                    db.execute("UPDATE rollouts SET owner = ? WHERE id = ?", (owner, writable(rollout_id)))
                owners[rollout_id] = owner
        self._remember_owners(owners)
        return owners

    def owners(self, rollout_ids: Sequence[str]) -> dict[str, str | None]:
        """The tokens that used rollouts first, as `begin` has them, without rollouts that nobody has used."""
        owners: dict[str, str | None] = {}
        with self._books.reading() as db:
            for rollout_id in rollout_ids:
                exists, owner = _owner(db, rollout_id)
                if exists:
                    owners[rollout_id] = owner
        self._remember_owners(owners)
        return owners

    def known_owner(self, rollout_id: str) -> tuple[bool, str | None]:
        """Whether `owners` can answer without reading the database, and its answer."""
        try:
            self._owners.move_to_end(rollout_id)
            return True, self._owners[rollout_id]
        except KeyError:
            return False, None

    def reward(self, rollout_id: str, reward: Reward, policies: Sequence[str]) -> GivenReward:
        """Gives a rollout a reward. Earlier ones are kept. When this returns, it survives a crash.

        Args:
            rollout_id: Id of the rollout.
            reward: The reward. Its scenario becomes the rollout's, where it has one.
            policies: The policies that answered in the rollout until now.
        """
        record = GivenReward(**self._redaction.reward(reward).model_dump(), time=time.time())
        with self._lock:
            with self._books.writing() as db:
                spec = _spec(db, rollout_id)
                _touch(db, rollout_id)
                if record.scenario is not None:
                    spec = (spec or RolloutSpec()).model_copy(update={"scenario": record.scenario})
                    db.execute("UPDATE rollouts SET spec = ? WHERE id = ?", (to_json(spec), writable(rollout_id)))
                    note_scenario(db, row_of(db, rollout_id), record.scenario)
                note_reward(db, rollout_id, record.reward, record.source)
                db.execute(
                    "INSERT INTO rewards (rollout, record) VALUES (?, ?)", (writable(rollout_id), to_json(record))
                )
                answers = [(writable(rollout_id), name) for name in policies]
                db.executemany("INSERT INTO policies VALUES (?, ?) ON CONFLICT DO NOTHING", answers)
            self._remember(rollout_id, spec)
        return record

    def evaluations(self, rollout_ids: Sequence[str]) -> set[str]:
        """Those of the rollouts that evaluate a version, as they were registered or reported."""
        with self._books.reading() as db:
            return {
                rollout_id
                for marks, ids in chunks([writable(rollout_id) for rollout_id in rollout_ids])
                for (rollout_id,) in db.execute(f"SELECT id FROM runs WHERE evaluation = 1 AND id IN ({marks})", ids)
            }

    def rewards(self, rollout_id: str) -> list[GivenReward]:
        """All rewards of a rollout, oldest first."""
        with self._books.reading() as db:
            query = "SELECT record FROM rewards WHERE rollout = ? ORDER BY rowid"
            return [from_json(GivenReward, record) for (record,) in db.execute(query, (writable(rollout_id),))]

    def list_rollouts(
        self, *, after: int, limit: int, policy: str | None, rewarded: bool | None
    ) -> tuple[list[RolloutListed], int | None]:
        """Rollouts that were registered or rewarded, oldest first. Those that only sent requests are not listed.

        Args:
            after: Leaves out the rollouts up to this number.
            limit: How many at most.
            policy: Only rollouts in which this policy had answered when they got a reward; None: all.
            rewarded: Only rollouts with a reward, or only those without; None: all.

        Returns:
            The rollouts, and the number of the last one if there are more.
        """
        rewards = "EXISTS (SELECT 1 FROM rewards WHERE rollout = id)"
        query = f"SELECT number, id, created, spec FROM rollouts WHERE number > ? AND (spec IS NOT NULL OR {rewards})"
        values: list[object] = [after]
        if rewarded is not None:
            query += f" AND {'' if rewarded else 'NOT '}{rewards}"
        if policy is not None:
            query += " AND EXISTS (SELECT 1 FROM policies WHERE rollout = id AND policy = ?)"
            values.append(writable(policy))
        rollouts: list[RolloutListed] = []
        with self._books.reading() as db:
            rows = db.execute(f"{query} ORDER BY number LIMIT ?", [*values, limit + 1]).fetchall()
            for _, rollout_id, created, record in rows[:limit]:
                spec = from_json(RolloutSpec, record) if record else RolloutSpec()
                last = db.execute(
                    "SELECT record FROM rewards WHERE rollout = ? ORDER BY rowid DESC LIMIT 1", (rollout_id,)
                ).fetchone()
                names = db.execute("SELECT policy FROM policies WHERE rollout = ? ORDER BY policy", (rollout_id,))
                rollouts.append(
                    RolloutListed(
                        id=rollout_id,
                        scenario=spec.scenario.id or None if spec.scenario else None,
                        policies=[name for (name,) in names],
                        reward=from_json(GivenReward, last[0]).reward if last else None,
                        evaluation=spec.evaluation,
                        created=created,
                    )
                )
        return rollouts, rows[limit - 1][0] if len(rows) > limit else None

    def purge(self, days: float = RETENTION_DAYS) -> int:
        """Deletes rollouts that nothing was recorded of for so many days: their completions are gone from the ledger.
        While the list has the run of a rollout, its owner stays.

        Returns:
            How many.
        """
        before = time.time() - days * 86400
        old = (
            "SELECT id FROM rollouts WHERE changed < ? AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = rollouts.id "
            "AND runs.changed >= ?) ORDER BY changed LIMIT ?"
        )

        def delete(most: int) -> int:
            with self._lock:
                with self._books.writing() as db:
                    count = _delete(db, [rollout_id for (rollout_id,) in db.execute(old, (before, before, most))])
                self._specs.clear()
                self._owners.clear()
            return count

        return delete_in_slices(delete)

    def of_policy(self, policy: str) -> set[str]:
        """Ids of the rollouts in which a policy had answered when they got a reward."""
        with self._books.reading() as db:
            return {
                rollout_id for (rollout_id,) in db.execute("SELECT rollout FROM policies WHERE policy = ?", (policy,))
            }

    def erase(self, rollout_ids: Sequence[str]) -> int:
        """Deletes what rollouts were registered with, and their rewards. Returns how many were there."""
        with self._lock:
            with self._books.writing() as db:
                count = _delete(db, [writable(rollout_id) for rollout_id in rollout_ids])
            self._specs.clear()
            self._owners.clear()
        return count

    def _remember(self, rollout_id: str, spec: RolloutSpec | None) -> None:
        request_spec = spec and spec.model_copy(update={"scenario": None, "metadata": {}})
        if self._books.shared or len(to_json(request_spec)) > _MOST_CHARACTERS:  # shared: another server may change it
            self._specs.pop(rollout_id, None)
            return
        self._specs[rollout_id] = request_spec
        self._specs.move_to_end(rollout_id)
        while len(self._specs) > _CACHE_SIZE:
            self._specs.popitem(last=False)

    def _remember_owners(self, owners: Mapping[str, str | None]) -> None:
        with self._lock:
            for rollout_id, owner in owners.items():
                self._owners[rollout_id] = owner
                self._owners.move_to_end(rollout_id)
            while len(self._owners) > _CACHE_SIZE:
                self._owners.popitem(last=False)


def _owner(db: Connection, rollout_id: str) -> tuple[bool, str | None]:
    """Whether something is known of a rollout, and the token that used it first."""
    name = writable(rollout_id)
    if (row := db.execute("SELECT owner FROM rollouts WHERE id = ?", (name,)).fetchone()) is not None:
        return True, row[0]
    return db.execute("SELECT 1 FROM runs WHERE id = ?", (name,)).fetchone() is not None, None


def _spec(db: Connection, rollout_id: str) -> RolloutSpec | None:
    row = db.execute("SELECT spec FROM rollouts WHERE id = ?", (writable(rollout_id),)).fetchone()
    return from_json(RolloutSpec, row[0]) if row and row[0] else None


def _delete(db: Connection, rollout_ids: Sequence[str]) -> int:
    """Deletes rollouts with all that is known of them. Returns how many were there."""
    count = 0
    for marks, ids in chunks(rollout_ids):
        for table in ("rewards", "policies"):
            db.execute(f"DELETE FROM {table} WHERE rollout IN ({marks})", ids)
        count += db.execute(f"DELETE FROM rollouts WHERE id IN ({marks})", ids).rowcount
    return count


def _touch(db: Connection, rollout_id: str) -> None:
    """Notes that a rollout has changed, and makes its row where there is none."""
    now = time.time()
    query = (
        "INSERT INTO rollouts (id, created, changed) VALUES (?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET changed = excluded.changed"
    )
    db.execute(query, (writable(rollout_id), now, now))
