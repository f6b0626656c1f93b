"""Keeps the list of runs up to date: reads what the ledger and the jobs recorded since the last reading.

It reads when a page is requested, so the gateway never waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time

from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.base import Ledger, LedgerError, ListsCompletions
from trainer_server.ledger.run_repository import RunRepository, SentReference
from trainer_server.wire import StepRequest, TrainingError

log = logging.getLogger("trainer_server")

_BATCH = 1000
_ROUND = 2.0
"""Seconds after which a reader lets others work."""


class Follower:
    """Reads ledger and jobs into the book of runs.

    Args:
        ledger: Of the server.
        board: Its jobs.
        runs: The book.
    """

    def __init__(self, ledger: Ledger, board: JobQueue, runs: RunRepository) -> None:
        self._ledger, self._board, self._runs = ledger, board, runs
        self._task: asyncio.Task[bool] | None = None
        self.behind = False
        """Whether there is more to read."""
        self.problem: str | None = None
        """Why the list may lack runs; None: it has all."""

    async def look(self, patience: float) -> None:
        """Reads what is new. It goes on in the background when that takes longer than `patience` seconds."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(asyncio.to_thread(self.read))
        await asyncio.wait({self._task}, timeout=patience)
        self.behind = self._task.result() if self._task.done() else True

    def read(self) -> bool:
        """Reads for a moment. Returns whether there is more to read."""
        try:
            behind = self._completions()
            self._jobs()
            self.problem = (
                None
                if isinstance(self._ledger, ListsCompletions)
                else (
                    f"The ledger ({type(self._ledger).__name__}) does not list what it recorded: runs that nobody "
                    "registered, rewarded or reported are not in this list."
                )
            )
        except LedgerError as error:
            self.problem = str(error)
            return False
        except Exception as error:  # at the edge of a thread: the pages say it
            log.exception("the list of runs cannot be brought up to date")
            self.problem = f"The list is not up to date: {type(error).__name__}: {error}"
            return False
        return behind

    def _completions(self) -> bool:
        if not isinstance(self._ledger, ListsCompletions):
            return False
        deadline = time.monotonic() + _ROUND
        place = int(self._runs.place("ledger") or 0)
        while new := self._ledger.recorded(place, _BATCH):
            self._runs.follow(new)
            place = new[-1].place
            if len(new) < _BATCH:
                return False
            if time.monotonic() > deadline:
                return True
        return False

    def _jobs(self) -> None:
        last = self._runs.place("jobs")
        for job_id in self._board.ids():
            if job_id <= last:
                continue
            try:
                file = self._board.file(job_id)
            except (TrainingError, OSError):  # damaged, or gone meanwhile
                continue
            runs = self._find_runs(file.request) if isinstance(file.request, StepRequest) else []
            self._runs.step(job_id, file.policy, runs)

    def _find_runs(self, request: StepRequest) -> list[SentReference]:
        """The runs in the request of a step. The first completion of a reference names its run in the ledger."""
        references = [reference for group in request.groups for reference in group.trajectories]
        first = [reference.completions[0] for reference in references if reference.completions]
        completions = self._ledger.read(list(dict.fromkeys(first)))
        runs = []
        for reference in references:
            completion = completions.get(reference.completions[0]) if reference.completions else None
            if completion is not None and completion.rollout is not None:
                whole = reference.run is None
                runs.append(SentReference(completion.rollout, reference.id, reference.reward, whole))
        return runs
