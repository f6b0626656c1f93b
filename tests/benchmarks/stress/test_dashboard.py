"""The benchmark of the dashboard asks of a list of runs what the pages ask."""

from __future__ import annotations

from pathlib import Path

from benchmarks.stress.dashboard import VERSIONS, fill, pages, queries, timed
from trainer_server.ledger.run_list import RunList
from trainer_server.ledger.run_repository import RunRepository
from trainer_server.ledger.sqlite import SQLiteBooks


def test_each_query_finds_something_in_what_it_fills(tmp_path: Path) -> None:
    books = SQLiteBooks(tmp_path / "rollouts.sqlite")
    fill(RunRepository(books), 800)
    runs = RunList(RunRepository(books))
    assert runs.count() == 800
    assert len(runs.by_version("agent", evaluation=False)) == VERSIONS
    answers = {name: ask() for name, ask in queries(runs, 800).items()}
    assert [name for name, answer in answers.items() if not answer] == []
    assert set(timed(runs.count, 2)) == {"median", "worst", "processor"}
    assert pages(runs)["run"].startswith("/ui/runs/run-")
