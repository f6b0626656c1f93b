"""Questions about the book of runs: a page of the list, a group, a scenario across versions, a policy's figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from trainer_server.ledger.books import Books, words_of
from trainer_server.ledger.run_repository import RunRepository
from trainer_server.wire.text import writable

_TRUTHS = ("several", "evaluation", "traced")
_CURSOR = re.compile(r"(-?(?:inf|[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[+-][0-9]{1,3})?))-([0-9]{1,18})")
MOST_OF_A_GROUP = 64
"""Runs of a group that are shown side by side."""
MOST_OUTCOMES = 200
"""Outcomes of a scenario that are listed."""
MOST_SCENARIOS = 100
"""Scenarios of a policy on a page."""
MOST_NODES = 20
"""Nodes of a policy that have curves: those with the most rewards."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a list."""

    number: int
    id: str
    started: float
    seconds: float
    trajectory: str | None
    """Id of its trajectory; None: no client reported the run."""
    policy: str | None
    version: int | None
    """The first version that answered; None: none did until now."""
    several: bool
    """Whether other versions, or other policies, answered too."""
    scenario: str | None
    reward: float | None
    rewarded_by: str | None
    failed: str | None
    """What it raised, or what is wrong with an answer; None: nothing is."""
    evaluation: bool
    traced: bool
    """Whether its client reported what it did."""
    graph: str | None
    calls: int
    """Completions in the ledger."""
    tokens: int
    """Sampled tokens."""


_COLUMNS = ", ".join(field.name for field in fields(RunRow))


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list. None, or an empty text, does not restrict."""

    search: str = ""
    """The beginning of an id or of the scenario's id; or words, in any order, that the beginning of the task or of the
    answer has. `sun*` is any word that begins so. Case and accents do not matter."""
    policy: str = ""
    version: int | None = None
    scenario: str = ""
    min_reward: float | None = None
    max_reward: float | None = None
    since: float | None = None
    """Earliest start, as Unix time."""
    until: float | None = None
    """Starts before this Unix time."""
    failed: bool | None = None
    rewarded: bool | None = None
    kind: Literal["", "training", "evaluation"] = ""

    @property
    def any(self) -> bool:
        """Whether it restricts anything."""
        return any(getattr(self, field.name) not in ("", None) for field in fields(self))


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of the list, newest runs first."""

    runs: list[RunRow]
    next: str | None
    """`before` of the next page; None: this is the last one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What runs came to, by version, or by scenario and version."""

    policy: str
    version: int
    scenario: str | None
    evaluation: bool
    runs: int
    mean: float
    least: float
    greatest: float
    successes: int
    """Runs with a reward of at least 1."""

    @property
    def is_dead(self) -> bool:
        """Whether all runs got the same reward: a group of them teaches nothing."""
        return self.least == self.greatest


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """What the rewards of a node came to in the training runs of a version."""

    node: str
    """The node, or the pattern of nodes, that the reward function named."""
    version: int
    runs: int
    mean: float


class RunList:
    """Reads the book of runs. Any thread may call it.

    Args:
        book: The book.
    """

    def __init__(self, book: RunRepository) -> None:
        self._books = book.books

    def page(self, run_filter: RunFilter, before: str = "", limit: int = 100) -> RunPage:
        """A page of runs, newest first.

        Args:
            run_filter: Which runs.
            before: `RunPage.next` of the page before; empty, or no such text: the first page.
            limit: Runs on a page.
        """
        clauses, values = _clauses(run_filter, self._books)
        if cursor := _CURSOR.fullmatch(before):
            clauses.append("(started, number) < (?, ?)")
            values += [float(cursor[1]), int(cursor[2])]
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        query = f"SELECT {_COLUMNS} FROM runs {where} ORDER BY started DESC, number DESC LIMIT ?"
        rows = self._rows(query, *values, limit + 1)
        last = rows[limit - 1] if len(rows) > limit else None
        return RunPage(rows[:limit], f"{last.started!r}-{last.number}" if last else None)

    def count(self) -> int:
        """How many runs there are."""
        return int(self._all("SELECT count(*) FROM runs")[0][0])

    def newer(self, run_filter: RunFilter, than: int) -> int:
        """How many runs were begun after the one of a number, 100 at most."""
        clauses, values = _clauses(run_filter, self._books)
        where = " AND ".join([*clauses, "number > ?"])
        query = f"SELECT count(*) FROM (SELECT 1 FROM runs WHERE {where} LIMIT 100) AS newer"
        return int(self._all(query, *values, than)[0][0])

    def revision(self) -> str:
        """A text that differs whenever a run was added, changed or deleted."""
        parts = ("max(number)", "max(changed)", "count(*)")  # each by an index of its own
        query = f"SELECT {', '.join(f'(SELECT {part} FROM runs)' for part in parts)}"
        return str(self._all(query)[0])

    def newest(self) -> int:
        """The highest number of a run; 0: there is none."""
        return int(self._all("SELECT coalesce(max(number), 0) FROM runs")[0][0])

    def run(self, run_id: str) -> RunRow | None:
        """A run by its id, or by that of its trajectory; None: there is none."""
        return self.runs([run_id])[run_id]

    def runs(self, run_ids: Sequence[str]) -> dict[str, RunRow | None]:
        """Runs by their ids, or by those of their trajectories, in that order; None: there is none."""
        texts = {run_id: writable(run_id) for run_id in run_ids}
        marks = ", ".join("?" * len(texts))
        query = f"SELECT {_COLUMNS} FROM runs WHERE id IN ({marks}) OR trajectory IN ({marks})"
        rows = self._rows(query, *texts.values(), *texts.values()) if texts else []
        by_text = {row.trajectory: row for row in rows} | {row.id: row for row in rows}
        return {run_id: by_text.get(text) for run_id, text in texts.items()}

    def versions(self, number: int) -> list[tuple[str, int]]:
        """All versions that answered in a run."""
        query = "SELECT policy, version FROM run_versions WHERE run = ? ORDER BY policy, version"
        return [(str(policy), int(version)) for policy, version in self._all(query, number)]

    def steps(self, number: int) -> list[tuple[str, str, float | None]]:
        """Training steps that a run was sent to: (job, reference, reward), oldest first."""
        query = "SELECT job, reference, reward FROM run_steps WHERE run = ? ORDER BY job, reference"
        return [(str(job), str(reference), reward) for job, reference, reward in self._all(query, number)]

    def group(self, scenario: str, policy: str, version: int | None) -> list[RunRow]:
        """Runs of a scenario by one version, oldest first. version None: by any."""
        query = f"SELECT {_COLUMNS} FROM runs WHERE scenario = ? AND policy {'= ?' if policy else 'IS NULL'}"
        values: list[Any] = [writable(scenario), *([writable(policy)] if policy else [])]
        if version is not None:
            query, values = f"{query} AND version = ?", [*values, version]
        return self._rows(f"{query} ORDER BY started, number LIMIT ?", *values, MOST_OF_A_GROUP)

    def by_version(self, policy: str, *, evaluation: bool, scenario: str = "") -> list[Outcome]:
        """What rewarded runs of a policy came to, by version. scenario: of this one only; empty: of all."""
        query = _outcomes(f"policy = ? AND evaluation = ?{' AND scenario = ?' if scenario else ''}")
        values = [writable(policy), int(evaluation), *([writable(scenario)] if scenario else [])]
        return [Outcome(*row) for row in self._all(query, *values)]

    def by_node(self, policy: str, scenario: str = "") -> list[NodeOutcome]:
        """What the rewards of nodes came to in rewarded training runs of a policy, by node and version.

        Args:
            policy: Its name.
            scenario: Runs of this one only; empty: of all.

        Returns:
            Of the `MOST_NODES` nodes with the most rewards, those with the most first, each by version.
        """
        query = (
            "SELECT node, version, count(*), avg(run_nodes.reward) FROM runs JOIN run_nodes ON run = number "
            f"WHERE policy = ? AND evaluation = 0{' AND scenario = ?' if scenario else ''} AND version IS NOT NULL "
            "AND runs.reward IS NOT NULL GROUP BY node, version ORDER BY node, version"
        )
        values = [writable(policy), *([writable(scenario)] if scenario else [])]
        outcomes = [NodeOutcome(*row) for row in self._all(query, *values)]
        runs = Counter[str]()
        for outcome in outcomes:
            runs[outcome.node] += outcome.runs
        place = {node: number for number, (node, _) in enumerate(runs.most_common(MOST_NODES))}
        return sorted(
            (outcome for outcome in outcomes if outcome.node in place), key=lambda outcome: place[outcome.node]
        )

    def by_scenario(self, scenario: str) -> list[Outcome]:
        """What rewarded runs of a scenario came to, by policy, version and kind: the `MOST_OUTCOMES` of the newest
        versions."""
        query = _outcomes("scenario = ? AND policy IS NOT NULL", by_scenario=True)
        query = f"SELECT * FROM ({query}) AS outcomes ORDER BY version DESC, policy, evaluation LIMIT {MOST_OUTCOMES}"
        return sorted(
            (Outcome(*row) for row in self._all(query, writable(scenario))),
            key=lambda outcome: (outcome.policy, outcome.version, outcome.evaluation),
        )

    def scenarios(self, policy: str, after: str = "") -> list[str]:
        """Ids of scenarios that a policy has rewarded runs of, in their order, `MOST_SCENARIOS` of them. after: the
        last one of the page before."""
        query = (
            "SELECT DISTINCT scenario FROM runs WHERE policy = ? AND version IS NOT NULL AND reward IS NOT NULL "
            "AND scenario > ? ORDER BY scenario LIMIT ?"
        )
        return [str(scenario) for (scenario,) in self._all(query, writable(policy), writable(after), MOST_SCENARIOS)]

    def last_of(self, scenario: str) -> str | None:
        """Id of the newest run of a scenario, of those that a client reported where there are any."""
        query = "SELECT id FROM runs WHERE scenario = ? ORDER BY traced DESC, started DESC LIMIT 1"
        return next((str(run) for (run,) in self._all(query, writable(scenario))), None)

    def of_scenarios(self, policy: str, scenarios: Sequence[str]) -> list[Outcome]:
        """What rewarded runs of a policy on some scenarios came to, by version, kind and scenario."""
        if not scenarios:
            return []
        query = _outcomes(f"policy = ? AND scenario IN ({', '.join('?' * len(scenarios))})", by_scenario=True)
        return [Outcome(*row) for row in self._all(query, writable(policy), *map(writable, scenarios))]

    def groups(self, policy: str, versions: Sequence[int], *, evaluation: bool = False) -> list[Outcome]:
        """Groups of some versions that have two or more rewards: runs of a scenario by one version, for training or
        for evaluation."""
        if not versions:
            return []
        marks = ", ".join("?" * len(versions))
        where = f"policy = ? AND version IN ({marks}) AND evaluation = ? AND scenario IS NOT NULL"
        query = _outcomes(where, by_scenario=True, having="HAVING count(*) > 1")
        return [Outcome(*row) for row in self._all(query, writable(policy), *versions, int(evaluation))]

    def minutes(self, since: float) -> list[tuple[int, int, int, int]]:
        """(minute, completions, sampled tokens, answers that are not whole) since a Unix time; of minutes with any."""
        query = (
            "SELECT minute, sum(completions), sum(tokens), sum(failed) FROM run_minutes WHERE minute >= ? "
            "GROUP BY minute ORDER BY minute"
        )
        return [(int(a), int(b), int(c), int(d)) for a, b, c, d in self._all(query, int(since // 60))]

    def _rows(self, query: str, *values: Any) -> list[RunRow]:
        names = [field.name for field in fields(RunRow)]
        records = [dict(zip(names, row, strict=True)) for row in self._all(query, *values)]
        return [RunRow(**record | {name: bool(record[name]) for name in _TRUTHS}) for record in records]

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._books.reading() as db:
            return db.execute(query, values).fetchall()


def _outcomes(where: str, *, by_scenario: bool = False, having: str = "") -> str:
    """A query that gives the values of `Outcome`, in the order of versions."""
    by = "policy, version, evaluation" + (", scenario" if by_scenario else "")
    return (
        f"SELECT policy, version, {'scenario' if by_scenario else 'NULL'}, evaluation, count(*), avg(reward), "
        "min(reward), max(reward), count(CASE WHEN reward >= 1 THEN 1 END) FROM runs "
        f"WHERE {where} AND version IS NOT NULL AND reward IS NOT NULL GROUP BY {by} {having} ORDER BY {by}"
    )


def _clauses(run_filter: RunFilter, books: Books) -> tuple[list[str], list[Any]]:
    """Conditions of a query, and their values."""
    clauses: list[str] = []
    values: list[Any] = []

    def add(clause: str, *parameters: Any) -> None:
        clauses.append(clause)
        values.extend(parameters)

    columns = {"policy": writable(run_filter.policy) or None, "version": run_filter.version}
    conditions = {name: value for name, value in columns.items() if value is not None}
    if conditions:
        own = " AND ".join(f"runs.{name} = ?" for name in conditions)
        other = " AND ".join(f"one.{name} = ?" for name in conditions)
        inner = f"several = 1 AND EXISTS (SELECT 1 FROM run_versions AS one WHERE one.run = number AND {other})"
        add(f"(({own}) OR ({inner}))", *conditions.values(), *conditions.values())
    if run_filter.scenario:
        add("scenario = ?", writable(run_filter.scenario))
    for clause, value in (
        ("reward >= ?", run_filter.min_reward),
        ("reward <= ?", run_filter.max_reward),
        ("started >= ?", run_filter.since),
        ("started < ?", run_filter.until),
    ):
        if value is not None:
            add(clause, value)
    if run_filter.failed is not None:
        add(f"failed IS {'NOT ' if run_filter.failed else ''}NULL")
    if run_filter.rewarded is not None:
        add(f"reward IS {'NOT ' if run_filter.rewarded else ''}NULL")
    if run_filter.kind:
        add("evaluation = ?", int(run_filter.kind == "evaluation"))
    if run_filter.search:
        text = re.sub(r"([%_\\])", r"\\\1", writable(run_filter.search))
        begins = " OR ".join(f"{column} {books.like} ? ESCAPE '\\'" for column in ("id", "scenario", "trajectory"))
        words = words_of(writable(run_filter.search))
        inside = f" OR {books.has_words}" if words else ""
        add(f"({begins}{inside})", *[f"{text}%"] * 3, *([books.words(words)] if words else []))
    return clauses, values
