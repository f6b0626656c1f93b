"""What clients saw of their requests, and whether the ledger agrees with it."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from trainer_server.common.jsonl import from_json
from trainer_server.wire import Completion, CompletionStatus


@dataclass(slots=True)
class Receipt:
    """What a client saw of one request. A request that is sent again has another text, and so another receipt."""

    asked: str
    """Text of the last message. No other request has it."""
    id: str | None = None
    """Id of the completion, once something of the answer was received."""
    tokens: list[int] = field(default_factory=list)
    """Sampled tokens, as far as they were received."""
    whole: bool = False
    """Whether the answer was received to its end."""


@dataclass(frozen=True, slots=True)
class Balance:
    """What the ledger has of the requests. All counts but the first two are 0 where the books balance."""

    received: int
    """Answers that clients received to their end."""
    rows: int
    """Rows of the ledger."""
    lost: int
    """Answers that were received to their end, and that the ledger does not have as `complete`."""
    differing: int
    """Answers of which the ledger has other tokens than the client received."""
    doubled: int
    """Rows of a request beyond its first."""
    unasked: int
    """Rows of requests that no client sent."""
    unrecorded: int
    """Answers that a client received in part, before it left or the server broke off, and that the ledger lacks."""
    mixed: int
    """Rollouts that more than one version answered."""

    @property
    def even(self) -> bool:
        """Whether nothing was lost, doubled, changed or made up. `unrecorded` and `mixed` do not count: a server
        that is killed forgets answers that are under way, and which version a rollout holds."""
        return not (self.lost or self.differing or self.doubled or self.unasked)


def balance(receipts: Iterable[Receipt], rows: Iterable[Completion]) -> Balance:
    """Compares what clients saw with the ledger.

    Args:
        receipts: Of all requests.
        rows: All of the ledger.
    """
    by_text = {receipt.asked: receipt for receipt in receipts}
    counts: Counter[str] = Counter()
    versions: defaultdict[str, set[int | None]] = defaultdict(set)
    complete: set[str] = set()
    differing = unasked = 0
    for row in rows:
        asked = str(row.request["messages"][-1]["content"])
        counts[asked] += 1
        if row.rollout is not None:
            versions[row.rollout].add(row.version)
        if (receipt := by_text.get(asked)) is None:
            unasked += 1
            continue
        if receipt.id == row.id:
            if row.status == CompletionStatus.complete:
                complete.add(asked)
            seen = row.token_ids if receipt.whole else row.token_ids[: len(receipt.tokens)]
            differing += receipt.tokens != seen
    received = [receipt for receipt in by_text.values() if receipt.whole]
    partly = [receipt for receipt in by_text.values() if receipt.tokens and not receipt.whole]
    return Balance(
        received=len(received),
        rows=counts.total(),
        lost=sum(receipt.asked not in complete for receipt in received),
        differing=differing,
        doubled=counts.total() - len(counts),
        unasked=unasked,
        unrecorded=sum(receipt.asked not in counts for receipt in partly),
        mixed=sum(len(found) > 1 for found in versions.values()),
    )


def rows_of(ledger: Path | str) -> Iterator[Completion]:
    """All rows of a ledger, without the code of the server that wrote it.

    Args:
        ledger: The SQLite file, or the address of the PostgreSQL database.
    """
    if isinstance(ledger, Path):
        with closing(sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro", uri=True)) as db:
            for (record,) in db.execute("SELECT record FROM completions"):
                yield from_json(Completion, record)
        return
    with psycopg.connect(ledger) as database, database.cursor(name="rows") as rows:
        for (record,) in rows.execute("SELECT record FROM art_langgraph.completions"):
            yield from_json(Completion, record)
