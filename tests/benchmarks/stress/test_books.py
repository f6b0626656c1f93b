"""The comparison of a ledger with what clients saw: each way in which the two can disagree is counted."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stress.books import Receipt, balance, rows_of
from tests.support.homes.ledger_rows import row
from tests.support.servers.postgres import postgres_server
from trainer_server.ledger.postgres import PostgresLedger
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.wire import Completion, CompletionStatus


def answered(one: str, asked: str, **more: Any) -> Completion:
    request = {"messages": [{"role": "user", "content": asked}]}
    return row(one).model_copy(update={"request": request, "rollout": "r", **more})


def whole(one: str, asked: str, *tokens: int) -> Receipt:
    return Receipt(asked, one, list(tokens or (3, 4)), whole=True)


ROWS = [answered("a", "ask a"), answered("b", "ask b", token_ids=[3, 4, 5], status=CompletionStatus.aborted)]
RECEIPTS = [whole("a", "ask a"), Receipt("ask b", "b", [3, 4]), Receipt("ask c")]


def test_books_that_balance() -> None:
    found = balance(RECEIPTS, ROWS)
    assert found.even
    assert (found.received, found.rows) == (1, 2)
    assert not any(value for name, value in asdict(found).items() if name not in ("received", "rows"))


@pytest.mark.parametrize(
    ("receipts", "rows", "wrong", "even"),
    [
        (RECEIPTS, ROWS[1:], {"lost"}, False),
        (RECEIPTS, [answered("a", "ask a", status=CompletionStatus.aborted), ROWS[1]], {"lost"}, False),
        ([whole("other", "ask a"), *RECEIPTS[1:]], ROWS, {"lost"}, False),
        ([whole("a", "ask a", 3), *RECEIPTS[1:]], ROWS, {"differing"}, False),
        ([RECEIPTS[0], Receipt("ask b", "b", [4])], ROWS, {"differing"}, False),
        (RECEIPTS, [*ROWS, answered("again", "ask a")], {"doubled"}, False),
        (RECEIPTS, [*ROWS, answered("d", "ask d")], {"unasked"}, False),
        (RECEIPTS, ROWS[:1], {"unrecorded"}, True),
        (RECEIPTS, [ROWS[0], ROWS[1].model_copy(update={"version": 2})], {"mixed"}, True),
    ],
)
def test_each_disagreement_is_counted(
    receipts: list[Receipt], rows: list[Completion], wrong: set[str], even: bool
) -> None:
    found = balance(receipts, rows)
    counts = {name: value for name, value in asdict(found).items() if name not in ("received", "rows") and value}
    assert counts == dict.fromkeys(wrong, 1)
    assert found.even == even


async def test_rows_are_read_from_the_ledger(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    await ledger.add(*ROWS)
    assert list(rows_of(ledger.path)) == ROWS
    ledger.close()


async def test_rows_are_read_from_a_ledger_in_postgres() -> None:
    with postgres_server() as server:
        ledger = PostgresLedger(server.url())
        await ledger.add(*ROWS)
        for address in (server.url(), server.socket_url()):
            assert list(rows_of(address)) == ROWS
        ledger.close()
