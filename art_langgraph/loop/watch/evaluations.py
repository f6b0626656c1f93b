"""Evaluations of versions on held-out scenarios: each version is measured once, also by a run that is continued."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.watch.held_out import HeldOut
from art_langgraph.loop.watch.reward_facts import reward_facts
from art_langgraph.rewards import RewardFunction
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario
from trainer_server.wire import Policy

log = logging.getLogger("art_langgraph")

Measure = Callable[..., Awaitable[Evaluation]]
"""`evaluate`, with the graph and all that the training run fixes."""


class Evaluations:
    """The held-out evaluations of one training run. To make it asks the store: do so in a thread.

    An evaluation is kept in the trajectory store: its runs as those of any evaluation, and a row of the table
    `evaluations` that names them. It belongs to the policy, the version, the ids of the held-out scenarios, the number
    of runs, the temperature, the name and the code of the reward function (`reward_facts`), and the name of the
    training run. A change of the graph is not noticed. Without a store it is kept in memory, and a run that is
    continued measures anew.

    Args:
        measure: Makes an evaluation.
        policy: The policy.
        held_out: How scenarios are measured.
        scenarios: The held-out scenarios.
        reward: Scores a run.
        store: Where evaluations are kept; None: in memory.
        run: Name of the training run.
        resumed: Whether the run may be one that is continued, so that kept evaluations count.
        progress: Whether to show bars on a terminal.
    """

    def __init__(
        self,
        measure: Measure,
        *,
        policy: Policy,
        held_out: HeldOut,
        scenarios: Sequence[Scenario],
        reward: RewardFunction | None,
        store: TrajectoryStore | None,
        run: str,
        resumed: bool,
        progress: bool,
    ) -> None:
        self._measure, self._policy = measure, policy.name
        self._held_out, self._scenarios, self._reward = held_out, scenarios, reward
        self._store, self._named, self._progress = store, bool(run), progress
        self._key = _key(policy, held_out, scenarios, reward, run)
        self._kept = store.evaluations(self._key) if store is not None and resumed else {}
        self.by_version: dict[int, Evaluation] = {}
        """By version: all evaluations of this process, and the kept ones that it asked for."""

    @property
    def first(self) -> int | None:
        """The version that the training run began with, where a run of this name kept it."""
        return next(iter(self._kept), None) if self._named else None

    async def find_evaluation(self, version: int) -> Evaluation | None:
        """The evaluation of a version, if it was made before; None: it was not."""
        if version in self.by_version:
            return self.by_version[version]
        if self._store is None or (ids := self._kept.get(version)) is None:
            return None
        runs = await asyncio.to_thread(lambda: [self._store.get(trajectory_id) for trajectory_id in ids])  # type: ignore[union-attr]
        stored = [run for run in runs if run is not None]
        if len(stored) < len(ids):
            return None
        log.info("%s@%d was measured before; its runs are in %s", self._policy, version, self._store.name)
        self.by_version[version] = Evaluation(stored, {self._policy: version}, self._held_out.success)
        return self.by_version[version]

    async def of(self, version: int) -> Evaluation:
        """The evaluation of a version: the one that was made before, or else a new one."""
        return await self.find_evaluation(version) or await self.anew(version)

    async def anew(self, version: int) -> Evaluation:
        """A new evaluation of a version.

        Raises:
            RolloutsFailed: As `evaluate`.
        """
        made = await self._measure(
            self._scenarios,
            self._reward,
            version={self._policy: version},
            n=self._held_out.n,
            success=self._held_out.success,
            temperature=self._held_out.temperature,
            progress=f"held-out scenarios, {self._policy}@{version}" if self._progress else False,
        )
        self.by_version.setdefault(version, made)
        if self._store is not None:
            ids = [run.id for run in made.trajectories]
            await asyncio.to_thread(self._store.add_evaluation, self._key, version, ids)
        return made


def _key(
    policy: Policy, held_out: HeldOut, scenarios: Sequence[Scenario], reward: RewardFunction | None, run: str
) -> str:
    """What an evaluation belongs to, besides the version. A policy that is created again is another one."""
    facts: list[Any] = [
        policy.name,
        policy.created,
        sorted(scenario.id for scenario in scenarios),
        held_out.n,
        held_out.temperature,
        reward_facts(reward),
        run,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
