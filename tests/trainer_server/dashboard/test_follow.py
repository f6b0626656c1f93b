"""The list of runs is brought up to date from ledger and jobs."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.homes.ledger_rows import row
from tests.support.homes.other_ledger import LinesLedger
from trainer_server.dashboard.follow import Follower
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.run_list import RunFilter, RunList
from trainer_server.ledger.run_repository import RunRepository
from trainer_server.ledger.sqlite import SQLiteBooks, SQLiteLedger
from trainer_server.wire import StepRequest


async def test_it_reads_each_completion_and_each_job_once(tmp_path: Path) -> None:
    ledger, board = SQLiteLedger(tmp_path / "l.sqlite"), JobQueue(tmp_path / "jobs")
    book = RunRepository(SQLiteBooks(tmp_path / "r.sqlite"))
    follower = Follower(ledger, board, book)
    await ledger.add(*(row(f"c{n}", time.time()).model_copy(update={"rollout": f"run-{n % 2}"}) for n in range(6)))
    references = [{"id": f"tr-{n}", "reward": n / 2, "completions": [f"c{n}"]} for n in range(2)]
    references.append({"id": "gone", "reward": 1.0, "completions": ["nobody"]})
    step = StepRequest.model_validate({"groups": [{"scenario_id": "s", "trajectories": references}]})
    board.accept("step", "agent", request=step)
    for _ in range(2):
        assert not follower.read()
    assert follower.problem is None
    runs = RunList(book)
    assert [(one.id, one.calls, one.reward) for one in reversed(runs.page(RunFilter()).runs)] == [
        ("run-0", 3, 0.0),
        ("run-1", 3, 0.5),
    ]
    ledger.close()


async def test_a_ledger_that_lists_nothing_is_named(tmp_path: Path) -> None:
    book = RunRepository(SQLiteBooks(tmp_path / "r.sqlite"))
    follower = Follower(LinesLedger(tmp_path / "l.jsonl"), JobQueue(tmp_path / "jobs"), book)
    await follower.look(30)
    assert not follower.behind
    assert "LinesLedger" in str(follower.problem)


def test_a_ledger_that_cannot_be_read_breaks_no_page(tmp_path: Path) -> None:
    class Broken(SQLiteLedger):
        def recorded(self, after: int, limit: int) -> list[object]:  # type: ignore[override]
            raise LedgerError("the disk is gone")

    book = RunRepository(SQLiteBooks(tmp_path / "r.sqlite"))
    follower = Follower(Broken(tmp_path / "l.sqlite"), JobQueue(tmp_path / "jobs"), book)
    assert not follower.read()
    assert follower.problem == "the disk is gone"
