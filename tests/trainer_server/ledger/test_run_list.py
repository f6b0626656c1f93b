"""The list of runs: filters, pages, groups, figures by version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.servers.postgres import DATABASES, open_books
from trainer_server.ledger import run_list
from trainer_server.ledger.base import CompletionSummary
from trainer_server.ledger.run_list import RunFilter, RunList
from trainer_server.ledger.run_repository import RunRepository
from trainer_server.wire import RunTrace


@pytest.fixture(scope="module", params=DATABASES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunList]:
    """Forty runs, two of each moment: agent@0 to agent@3 by turns, every fifth an evaluation, every seventh failed."""
    books = open_books(request, tmp_path_factory.mktemp("runs"))
    book = RunRepository(books)
    for number in range(40):
        name, at = f"run-{number:02}", 1000.0 + number // 2
        given = {
            "id": f"tr-{number}",
            "scenario": {"id": f"sc-{number % 4}", "input": f"task 100%_{number}"},
            "started": at,
            "reward": number % 3 / 2 if number % 2 else None,
            "evaluation": number % 5 == 0,
            "node_rewards": {"planner": number / 40, "*": 0.0} if number % 2 else None,
            "error": "it broke" if number % 7 == 0 else None,
        }
        book.trace(name, RunTrace.model_validate(given))
        book.follow([CompletionSummary(number + 1, at, "agent", number % 4, name, "complete", 3, "")])
    book.follow([CompletionSummary(99, 1003.0, "critic", 9, "run-07", "complete", 3, "")])
    yield RunList(book)
    books.close()


def ids(runs: RunList, **wanted: object) -> list[int]:
    return [int(one.id[4:]) for one in runs.page(RunFilter(**wanted), limit=100).runs]  # type: ignore[arg-type]


def test_the_newest_runs_come_first_and_pages_neither_repeat_nor_skip(runs: RunList) -> None:
    seen: list[str] = []
    page = runs.page(RunFilter(), limit=7)
    while True:
        seen += [one.id for one in page.runs]
        if page.next is None:
            break
        page = runs.page(RunFilter(), page.next, limit=7)
    assert seen == [f"run-{number:02}" for number in reversed(range(40))]
    assert runs.page(RunFilter(), "no cursor", limit=3).runs == runs.page(RunFilter(), limit=3).runs


def test_filters(runs: RunList) -> None:
    everything = list(reversed(range(40)))
    assert ids(runs, policy="agent") == everything
    assert ids(runs, policy="agent", version=3) == [one for one in everything if one % 4 == 3]
    assert ids(runs, version=9) == ids(runs, policy="critic") == [7]
    assert ids(runs, policy="agent", version=9) == ids(runs, policy="nobody") == []
    assert ids(runs, scenario="sc-1") == [one for one in everything if one % 4 == 1]
    assert ids(runs, kind="evaluation") == [one for one in everything if one % 5 == 0]
    assert ids(runs, failed=True) == [one for one in everything if one % 7 == 0]
    assert ids(runs, rewarded=False) == [one for one in everything if one % 2 == 0]
    assert ids(runs, min_reward=0.5, max_reward=0.5) == [one for one in everything if one % 2 and one % 3 == 1]
    assert ids(runs, since=1005.0, until=1006.0) == [11, 10]
    assert ids(runs, search="RUN-3") == everything[:10]
    assert ids(runs, search="tr-7") == [7]
    assert ids(runs, search="100%_2") == [2]
    assert ids(runs, search="TÁSK 3*") == ids(runs, search="TA\u0301SK 3*") == [*range(39, 29, -1), 3]
    assert ids(runs, search="%") == ids(runs, search="sk 3") == []
    assert ids(runs, search='0" OR "3') == ids(runs, search="NEAR(task)") == []


@given(search=st.text(max_size=8), policy=st.text(max_size=8), scenario=st.text(max_size=8))
def test_no_filter_breaks_a_query(runs: RunList, search: str, policy: str, scenario: str) -> None:
    wanted = RunFilter(search=search, policy=policy, scenario=scenario)
    assert runs.newer(wanted, 0) == len(runs.page(wanted, limit=100).runs)


def test_counts(runs: RunList) -> None:
    assert runs.count() == 40
    assert runs.newer(RunFilter(), runs.newest()) == 0
    assert runs.newer(RunFilter(), 0) == 40


def test_groups_and_figures(runs: RunList) -> None:
    group = runs.group("sc-1", "agent", 1)
    assert [one.id for one in group][:2] == ["run-01", "run-05"]
    training = {one.version: one for one in runs.by_version("agent", evaluation=False)}
    assert set(training) == {1, 3}  # runs of even numbers have no reward
    assert (training[1].runs, training[1].successes, training[1].least) == (8, 2, 0.0)
    assert [one.version for one in runs.by_version("agent", evaluation=True)] == [1, 3]
    assert {(one.scenario, one.version) for one in runs.groups("agent", [1, 3])} == {("sc-1", 1), ("sc-3", 3)}
    assert [(one.policy, one.version, one.evaluation) for one in runs.by_scenario("sc-3")] == [
        ("agent", 3, 0),
        ("agent", 3, 1),
    ]


def test_figures_of_a_scenario_are_of_its_runs_only(runs: RunList) -> None:
    (of_one,) = runs.by_version("agent", evaluation=False, scenario="sc-3")
    assert (of_one.version, of_one.runs) == (3, 8)
    assert runs.by_version("agent", evaluation=False, scenario="sc-0") == []


def test_rewards_of_nodes_by_version(runs: RunList) -> None:
    first = [number for number in range(40) if number % 4 == 1 and number % 5]
    outcomes = {(one.node, one.version): one for one in runs.by_node("agent")}
    assert set(outcomes) == {("planner", 1), ("planner", 3), ("*", 1), ("*", 3)}
    planner = outcomes["planner", 1]
    assert (planner.runs, planner.mean) == (len(first), pytest.approx(sum(first) / 40 / len(first)))
    assert {one.version for one in runs.by_node("agent", "sc-3")} == {3}
    assert runs.by_node("critic") == []


def test_scenarios_of_a_policy_are_listed_in_pages(runs: RunList, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs.scenarios("agent") == ["sc-1", "sc-3"]  # runs of the others have no reward
    monkeypatch.setattr(run_list, "MOST_SCENARIOS", 1)
    assert (runs.scenarios("agent"), runs.scenarios("agent", "sc-1"), runs.scenarios("agent", "sc-3")) == (
        ["sc-1"],
        ["sc-3"],
        [],
    )


def test_the_newest_outcomes_of_a_scenario_are_listed(runs: RunList, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "MOST_OUTCOMES", 1)
    assert [(one.version, one.evaluation) for one in runs.by_scenario("sc-3")] == [(3, 0)]


def test_only_the_nodes_with_the_most_rewards_have_figures(runs: RunList, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "MOST_NODES", 1)
    assert {one.node for one in runs.by_node("agent")} == {"*"}
