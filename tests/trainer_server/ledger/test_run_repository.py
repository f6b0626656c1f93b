"""The book of runs: what each source adds to a run's row, and how long it is kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from trainer_server.ledger.base import CompletionSummary
from trainer_server.ledger.books import Books
from trainer_server.ledger.rollouts import RolloutRepository
from trainer_server.ledger.run_list import RunFilter, RunList, RunRow
from trainer_server.ledger.run_repository import RunRepository, SentReference
from trainer_server.ledger.sqlite import SQLiteBooks
from trainer_server.wire import Gone, Reward, RolloutScenario, RolloutSpec, RunTrace


def answered(place: int, rollout: str | None = "a", **given: object) -> CompletionSummary:
    values = {
        "created": 100.0 + place,
        "policy": "agent",
        "version": 1,
        "status": "complete",
        "tokens": 5,
        "text": "hi",
    }
    return CompletionSummary(place=place, rollout=rollout, **{**values, **given})  # type: ignore[arg-type]


def trace(**given: object) -> RunTrace:
    return RunTrace.model_validate({"id": "tr-1", "scenario": {"id": "s", "input": "hello"}, "started": 99.0, **given})


def the_run(book: RunRepository, run_id: str = "a") -> RunRow:
    found = RunList(book).run(run_id)
    assert found is not None
    return found


@pytest.fixture
def book(books: Books) -> RunRepository:
    return RunRepository(books)


def test_an_evaluation_stays_one_whatever_is_reported_later(books: Books, book: RunRepository) -> None:
    rollouts = RolloutRepository(books)
    rollouts.register("a", RolloutSpec(evaluation=True))
    book.trace("a", trace())
    book.trace("b", trace(id="tr-2", evaluation=True))
    for rollout in ("a", "b", "c"):
        rollouts.reward(rollout, Reward(reward=1.0, scenario=RolloutScenario(id="s")), ["agent"])
    assert rollouts.evaluations(["a", "b", "c"]) == {"a", "b"}


def test_completions_of_the_ledger_make_runs(book: RunRepository) -> None:
    book.follow([answered(1), answered(2, version=2), answered(3, rollout=None), answered(4, status="aborted")])
    run = the_run(book)
    assert (run.policy, run.version, run.several, run.calls, run.tokens) == ("agent", 1, True, 3, 15)
    assert (run.started, run.seconds, run.failed, run.traced) == (101.0, 3.0, "an answer is aborted", False)
    assert RunList(book).versions(run.number) == [("agent", 1), ("agent", 2)]
    assert (book.place("ledger"), book.loose()) == ("4", 1)
    assert RunList(book).minutes(0) == [(1, 4, 20, 1)]


def test_completions_that_another_server_took_into_the_list_are_not_counted_twice(book: RunRepository) -> None:
    book.follow([answered(1), answered(2)])
    book.follow([answered(1), answered(2), answered(3)])
    assert the_run(book).calls == 3
    assert RunList(book).minutes(0) == [(1, 3, 15, 0)]


def test_servers_that_write_at_once_wait_for_one_another(books: Books) -> None:
    rollouts, book = RolloutRepository(books), RunRepository(books)

    def write(number: int) -> None:
        rollouts.register(f"r{number % 3}", RolloutSpec(scenario=RolloutScenario(id="s", input=f"task {number}")))
        rollouts.reward(f"r{number % 3}", Reward(reward=1.0), ["agent"])
        book.trace(f"r{number % 3}", trace(reward=0.5))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(30)))
    assert [len(rollouts.rewards(f"r{number}")) for number in range(3)] == [10, 10, 10]
    assert RunList(book).count() == 3


def test_a_trace_comes_back_as_it_was_and_another_takes_its_place(book: RunRepository) -> None:
    given = trace(
        error="ValueError: no", reward=0.5, metrics={"far": float("inf")}, nodes=[{"node": "n", "started": 1}]
    )
    book.trace("a", given, "the answer")
    assert book.find_trace("a") == given
    run = the_run(book)
    assert (run.scenario, run.reward, run.rewarded_by, run.failed) == ("s", 0.5, "reward function", "ValueError: no")
    assert the_run(book, "tr-1").id == "a"
    book.trace("a", trace(reward=0.75, reward_source="judge"))
    assert (the_run(book).failed, the_run(book).reward, the_run(book).rewarded_by) == (None, 0.75, "judge")
    assert book.find_trace("nobody") is None


def test_a_reward_that_is_not_finite_is_none(book: RunRepository) -> None:
    book.trace("a", trace(reward=float("nan")))
    assert the_run(book).reward is None


def test_what_a_client_told_of_a_failure_counts_more_than_a_broken_answer(book: RunRepository) -> None:
    book.trace("a", trace())
    book.follow([answered(1, status="aborted")])
    assert the_run(book).failed is None


def test_registrations_and_rewards_are_in_the_list_at_once(books: Books) -> None:
    rollouts, book = RolloutRepository(books), RunRepository(books)
    rollouts.register("a", RolloutSpec(scenario=RolloutScenario(id="s", input="look"), evaluation=True))
    rollouts.reward("a", Reward(reward=0.25, source="person"), ["agent"])
    run = the_run(book)
    assert (run.scenario, run.evaluation, run.reward, run.rewarded_by) == ("s", True, 0.25, "person")
    assert [one.id for one in RunList(book).page(RunFilter(search="LOOK")).runs] == ["a"]


def test_rollouts_from_before_there_was_a_list_are_taken_up(tmp_path: Path) -> None:
    rollouts = RolloutRepository(SQLiteBooks(tmp_path / "r.sqlite"))
    rollouts.register("a", RolloutSpec(scenario=RolloutScenario(id="s")))
    rollouts.reward("a", Reward(reward=0.5), [])
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as db:
        db.executescript("DROP TABLE runs; PRAGMA user_version = 0")
    run = the_run(RunRepository(SQLiteBooks(tmp_path / "r.sqlite")))
    assert (run.scenario, run.reward, run.rewarded_by) == ("s", 0.5, "http")


def test_a_step_says_which_runs_it_was_sent(book: RunRepository) -> None:
    book.trace("scored", trace(reward=1.0))
    references = [SentReference("a", "tr-1", 0.5), SentReference("b", "tr-2/node", 0.5, whole=False)]
    book.step("job-1", "agent", [*references, SentReference("scored", "tr-3", 0.0)])
    assert RunList(book).steps(the_run(book).number) == [("job-1", "tr-1", 0.5)]
    assert [the_run(book, one).reward for one in ("a", "b", "scored")] == [0.5, None, 1.0]
    assert book.place("jobs") == "job-1"


def test_runs_are_kept_as_long_as_rollouts(book: RunRepository) -> None:
    book.trace("a", trace())
    assert book.purge(days=1) == 0
    with book.books.writing() as db:
        db.execute("UPDATE runs SET changed = 0")
    assert book.purge(days=1) == 1
    assert (RunList(book).run("a"), book.find_trace("a")) == (None, None)
    with book.books.reading() as db:
        left = [
            db.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in ("run_traces", "run_texts", "run_versions")
        ]
    assert left == [0, 0, 0]


def test_traces_go_by_size_the_oldest_first_and_their_runs_stay(book: RunRepository) -> None:
    for name in "abcd":
        book.trace(name, trace(id=f"tr-{name}"))
    with book.books.reading() as db:
        (size,) = db.execute("SELECT sum(length(record)) FROM run_traces").fetchone()
    assert book.shed(size) == 0
    assert book.shed(size // 2, keep={"a"}) == 2
    assert [book.find_trace(name) is not None for name in "abcd"] == [True, False, False, True]
    assert [the_run(book, name).traced for name in "abcd"] == [True, False, False, True]
    assert book.shed(0, keep={"a"}) == 1
    assert book.shed(0) == 1
    assert book.find_trace("a") is None


def test_the_revision_of_the_list_differs_after_each_change(book: RunRepository) -> None:
    runs, seen = RunList(book), set[str]()
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: book.trace("a", trace()),
        lambda: book.trace("b", trace(id="tr-b")),
        lambda: book.trace("a", trace(reward=1.0)),
        lambda: book.erase(["b"]),
    ]
    for change in changes:
        change()
        seen.add(runs.revision())
    assert len(seen) == len(changes)


def test_half_a_surrogate_pair_harms_nothing(book: RunRepository) -> None:
    message = {"role": "assistant", "content": "\ud83d"}
    given = trace(completions=[{"id": "c", "message": message, "started": 1}], output={"text": "\ud83d"})
    book.trace("a", given, "\ud83d")
    book.follow([answered(1, text="\ud83d")])
    assert book.find_trace("a") == given
    assert [one.id for one in RunList(book).page(RunFilter(search="\ud83d")).runs] == ["a"]


def test_what_is_erased_is_gone_and_not_told_again(book: RunRepository) -> None:
    names = [f"run-{number}" for number in range(1200)]
    book.follow([answered(place, rollout=name) for place, name in enumerate(names, start=1)])
    book.trace(names[0], trace())
    assert book.of_policy("agent") == set(names)
    assert book.erase(names[:-1], "agent") == 1199
    assert book.overwrite()
    assert [one.id for one in RunList(book).page(RunFilter()).runs] == names[-1:]
    assert RunList(book).minutes(0) == []
    with pytest.raises(Gone):
        book.trace(names[0], trace())
