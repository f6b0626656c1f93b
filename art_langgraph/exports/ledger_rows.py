"""The ledger's rows of recorded runs: read from the trainer server, written beside the runs, brought to another server.

A line of a file with tokens is a run, and has `tokens`: the rows of its completions.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from art_langgraph.client.client import TrainerClient
from art_langgraph.trajectory import Trajectory
from trainer_server.wire import Added, Completion, ConfigError, ServerUnreachable

Rows = Mapping[str, Completion]
"""Rows by the id of the completion."""

_RUNS = 20
"""Runs whose rows are in memory at once."""


class LedgerRows:
    """Asks the trainer server for rows, or brings rows to it, from code that is not asynchronous. Use by `with`.

    Args:
        retry_for: Seconds for which requests are repeated to a server that is gone.

    Attributes:
        missing: Ids of completions of which the server had no row.
    """

    def __init__(self, retry_for: float) -> None:
        self._retry_for = retry_for
        self._loop = asyncio.Runner()
        self.missing: list[str] = []

    @cached_property
    def _trainer(self) -> TrainerClient:
        return TrainerClient(retry_for=self._retry_for)

    @property
    def url(self) -> str:
        """Address of the server. Raises ConfigError when there is no key of one."""
        return self._trainer.connection.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if "_trainer" in self.__dict__:
            self._loop.run(self._trainer.__aexit__(None, None, None))
        self._loop.close()

    def of(
        self, runs: Iterable[Trajectory], *, without: Callable[[str], None] | None = None
    ) -> Iterator[tuple[Trajectory, Rows]]:
        """Runs with the rows of their completions. Completions of other models have none.

        Args:
            runs: The runs.
            without: Called once with the reason why no server answers; runs have no rows then. None: that is an error.

        Raises:
            ConfigError: There is no key of a server.
            ServerUnreachable: No server answers.
            ServerError: The server refuses.
        """
        runs, unreachable = iter(runs), False
        while part := list(itertools.islice(runs, _RUNS)):
            ids = [call.id for run in part for call in run.completions if call.id is not None]
            rows: dict[str, Completion] = {}
            if ids and not unreachable:
                try:
                    rows = self._loop.run(self._trainer.completions(ids))
                except (ConfigError, ServerUnreachable) as error:
                    if without is None:
                        raise
                    without(str(error))
                    unreachable = True
                else:
                    self.missing += [completion_id for completion_id in dict.fromkeys(ids) if completion_id not in rows]
            for run in part:
                yield run, {call.id: rows[call.id] for call in run.completions if call.id in rows}

    def add(self, rows: Sequence[Completion]) -> Added:
        """Brings rows to the server. Raises what `TrainerClient.add_completions` does."""
        return self._loop.run(self._trainer.add_completions(rows))


def with_tokens(run: Trajectory, rows: Rows) -> dict[str, Any]:
    """A run and its rows as one JSON value."""
    return {**run.model_dump(mode="json"), "tokens": [row.model_dump(mode="json") for row in rows.values()]}


def run_and_rows(value: Any) -> tuple[Trajectory, list[Completion]]:
    """The run and the rows of a line. A line without tokens has no rows.

    Raises:
        ValueError: It is neither.
    """
    rows = value.get("tokens") if isinstance(value, dict) else None
    return Trajectory.model_validate(value), [Completion.model_validate(row) for row in rows or ()]
