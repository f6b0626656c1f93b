"""What the pages read: the server, its list of runs, the texts of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from trainer_server.dashboard.curves import curves
from trainer_server.dashboard.follow import Follower
from trainer_server.dashboard.tokens import TokenTexts
from trainer_server.dashboard.words import first_request, task_words
from trainer_server.ledger.run_list import Outcome, RunList
from trainer_server.server.dependencies import get_policy
from trainer_server.server.server import Server
from trainer_server.wire import Version

T = TypeVar("T")

_PATIENCE = 0.05
"""Seconds that a page waits for the list of runs to be brought up to date."""
_MOST_WORDS = 5_000
"""Scenarios, and runs without one, whose words are kept in memory."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the runs of a policy came to, by version."""

    training: Sequence[Outcome]
    held_out: Sequence[Outcome]


class Sources:
    """What the pages read.

    Args:
        server: The server.
    """

    def __init__(self, server: Server) -> None:
        self.server, self.jobs = server, server.jobs
        self.runs = RunList(server.runs)
        self.follower = Follower(server.ledger, server.jobs.queue, server.runs)
        self.texts = TokenTexts(Path(server.identity.base.path), server.engines, hidden=server.redaction.on)
        self._cache: dict[str, tuple[object, Any]] = {}
        self._words: dict[str, str] = {}

    def unless_changed(self, name: str, key: object, make: Callable[[], T]) -> T:
        """A cached value, computed again where its key has changed.

        Args:
            name: Of the value.
            key: Differs whenever the value would.
            make: Computes the value.
        """
        entry = self._cache.get(name)
        if entry is None or entry[0] != key:
            entry = self._cache[name] = key, make()
        value: T = entry[1]
        return value

    def versions(self, policy: str) -> list[Version]:
        """The versions of a policy, oldest first. Blocks."""
        store = self.server.store
        return [version for number in store.versions(policy) if (version := store.version(policy, number)) is not None]

    def figures(self, policy: str) -> Figures:
        """What the runs of a policy came to. They are added up again when a run was added, changed or deleted since.
        Blocks."""

        def sum_up() -> Figures:
            return Figures(*(self.runs.by_version(policy, evaluation=kind) for kind in (False, True)))

        return self.unless_changed(f"figures of {policy}", self.runs.revision(), sum_up)

    def curves(self, policy: str, scenario: str = "") -> dict[str, dict[str, Any]]:
        """The learning curves of a policy by name; see `curves`. Blocks.

        Args:
            policy: Its name.
            scenario: Only what runs of this one came to; empty: of all, and the metrics of steps.

        Raises:
            NotFound: There is no such policy.
        """
        get_policy(self.server, policy)
        if not scenario:
            figures = self.figures(policy)
            nodes = self.unless_changed(f"nodes of {policy}", self.runs.revision(), lambda: self.runs.by_node(policy))
            return curves(self.versions(policy), figures.training, figures.held_out, nodes)
        training, held_out = (
            self.runs.by_version(policy, evaluation=kind, scenario=scenario) for kind in (False, True)
        )
        return curves([], training, held_out, self.runs.by_node(policy, scenario))

    def words(self, scenarios: Iterable[str]) -> dict[str, str]:
        """The words of scenarios by their ids, from a run of each; the id where no run has its task. Blocks."""
        words_by_scenario = {}
        for scenario in scenarios:
            if not (words := self._words.get(scenario)):
                run = self.runs.last_of(scenario)
                trace = self.server.runs.find_trace(run) if run else None
                spec = self.server.rollouts.spec(run) if run and not trace else None
                of_run = trace.scenario if trace else spec.scenario if spec else None
                words = self._keep_words(scenario, task_words(of_run.input) if of_run else "")
            words_by_scenario[scenario] = words or scenario
        return words_by_scenario

    def request_words(self, run_id: str) -> str:
        """The words of the first request of a run that has no scenario; empty where the ledger has none. Blocks. Raises
        LedgerError."""
        key = f"run {run_id}"
        if not (words := self._words.get(key)):
            words = self._keep_words(key, task_words(first_request(self.server.ledger.rollout(run_id))))
        return words

    def _keep_words(self, key: str, words: str) -> str:
        if words:
            if len(self._words) >= _MOST_WORDS:
                self._words.clear()
            self._words[key] = words
        return words

    async def look(self) -> None:
        """Brings the list of runs up to date, as far as that takes a moment only."""
        await self.follower.look(_PATIENCE)


async def get_sources(request: Request) -> Sources:
    """The sources of an application, created with the first request for a page."""
    state = request.app.state
    if not hasattr(state, "sources"):
        state.sources = Sources(state.server)
    sources: Sources = state.sources
    return sources


SourcesDep = Annotated[Sources, Depends(get_sources)]
"""What a page reads, as a parameter of its route."""
