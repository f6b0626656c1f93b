"""Looks at a training again and again, until it has ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from art_langgraph.cli.watching.changes import Change, Training, describe_end
from art_langgraph.cli.watching.target import Target
from trainer_server.common.status import Curve
from trainer_server.wire import Job, ServerError

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient

_REMEMBERED = 50
"""Changes that are kept."""


class Following:
    """A training that is looked at.

    Args:
        trainer: The server.
        target: What is watched.

    Attributes:
        training: As it was at the last look.
        curves: The learning curves of the policy.
        recent: The last changes, oldest first.
        last: The job that ended last while it was watched; None: none did.
    """

    def __init__(self, trainer: TrainerClient, target: Target) -> None:
        self._trainer, self.target = trainer, target
        self.training = Training(target.policy, only=target.job)
        self.curves: dict[str, Curve] = {}
        self.recent: deque[Change] = deque(maxlen=_REMEMBERED)
        self.last: Job | None = None
        self._drawn: object = None

    async def looks(self, *, idle: float, every: float) -> AsyncIterator[list[Change]]:
        """Looks until the end, and yields after each look what has changed.

        Args:
            idle: Seconds without anything that happens, after which a policy is not watched any more; 0: never.
            every: Seconds between two looks.
        """
        self.training.calm = min(self.training.calm, idle or self.training.calm)
        while True:
            changes = await self._look()
            over = self._over(idle)
            if over is not None:
                changes.append(over)
            self.recent.extend(changes)
            yield changes
            ended_alone = self.target.job is not None and any(change.kind == "ended" for change in changes)
            if over is not None or ended_alone:
                return
            await asyncio.sleep(every)

    async def _look(self) -> list[Change]:
        status = await self._trainer.status()
        changes, closed = self.training.look(status)
        if self.target.job is not None and not self.training.open:
            closed = [self.target.job]
        await self.target.number_steps(self._trainer)
        changes = [*[await self._describe_end(job_id) for job_id in closed], *changes]
        known = self.training.status
        figures = known and (known.newest, known.held_out, known.training, known.score)
        if known is not None and (closed or figures != self._drawn):
            self.curves, self._drawn = await self._trainer.curves(known.name), figures
        return changes

    async def _describe_end(self, job_id: str) -> Change:
        try:
            self.last = await self._trainer.job(job_id)
        except ServerError as error:
            if error.status != 404:
                raise
            return Change("ended", f"{job_id} is not there any more: it was deleted", {"job": job_id})
        change = describe_end(self.last)
        step = self.target.steps.get(job_id)
        if step is None:
            return change
        return Change(change.kind, f"step {step} of {self.target.run}: {change.text}", {**change.facts, "step": step})

    def _over(self, idle: float) -> Change | None:
        """The last change, where nothing has happened for so long that the training counts as ended."""
        if self.target.job is not None or not idle or self.training.quiet < idle:
            return None
        known = self.training.status
        newest = "is not there any more" if known is None else f"is at version {known.newest}"
        return Change("over", f"nothing has happened for {idle:g} s: {self.target.policy} {newest}")
