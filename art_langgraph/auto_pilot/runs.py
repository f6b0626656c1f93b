"""Runs of a deployment: those that a candidate may be trained on, and how those of two versions ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from art_langgraph.auto_pilot.decision import Outcomes
from art_langgraph.client.client import TrainerClient
from art_langgraph.client.rollouts import read_rollouts
from art_langgraph.loop.evaluate import Success
from art_langgraph.loop.watch.held_out import input_id
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Trajectory


class RunSource(Protocol):
    """Where runs and their rewards are."""

    async def runs(self, since: float) -> Sequence[Trajectory]:
        """Runs that have ended, newest first.

        Args:
            since: Earliest start, as Unix time.
        """
        ...

    async def read(self, ids: Sequence[str]) -> list[Trajectory]:
        """Runs by their ids. Those that are gone are left out."""
        ...


class StoredRuns:
    """Runs of a trajectory store: those that `install` records, in `langgraph dev` or a deployment.

    Args:
        store: The store. It is read again only after it has changed.
    """

    def __init__(self, store: TrajectoryStore) -> None:
        self.store = store
        self._read: tuple[tuple[int | str | None, ...], float, list[Trajectory]] = ((), 0.0, [])
        """What the store was when it was read, since when, and the runs."""

    async def runs(self, since: float) -> Sequence[Trajectory]:
        """Runs that began at a Unix time or later, newest first."""
        revision = await asyncio.to_thread(self.store.revision)
        last_revision, last_since, runs = self._read
        if revision != last_revision or since < last_since:
            runs = await asyncio.to_thread(lambda: self.store.list(since=since))
            self._read = revision, since, runs
        return [run for run in runs if run.started >= since]

    async def read(self, ids: Sequence[str]) -> list[Trajectory]:
        """Runs by their ids, without those that are gone."""
        runs = await asyncio.to_thread(lambda: [self.store.get(trajectory_id) for trajectory_id in ids])
        return [run for run in runs if run is not None]


class LedgerRuns:
    """Rollouts of the trainer server that were given a reward by HTTP or `session`.

    Args:
        client: The server.
        policy: The policy that answered in them.
    """

    def __init__(self, client: TrainerClient, policy: str) -> None:
        self.client, self._policy = client, policy
        self._known: dict[tuple[str, float | None], Trajectory] = {}
        """By id and reward: a rollout is read again only when it got another reward."""

    async def runs(self, since: float) -> Sequence[Trajectory]:
        """Rollouts with a reward that began at a Unix time or later, newest first."""
        rollouts = [
            rollout
            async for rollout in self.client.rollouts(policy=self._policy, rewarded=True)
            if rollout.created >= since
        ]
        new = [rollout for rollout in rollouts if (rollout.id, rollout.reward) not in self._known]
        read = await read_rollouts(self.client, [rollout.id for rollout in new])
        by_key = self._known | {(rollout.id, rollout.reward): read[rollout.id] for rollout in new if rollout.id in read}
        keys = [(rollout.id, rollout.reward) for rollout in rollouts]
        self._known = {key: by_key[key] for key in keys if key in by_key}
        return [run for run in reversed(self._known.values()) if run.started >= since]

    async def read(self, ids: Sequence[str]) -> list[Trajectory]:
        """Runs by their ids, without those that are gone."""
        return list((await read_rollouts(self.client, ids)).values())


def has_completion(run: Trajectory, policy: str) -> bool:
    """Whether a policy answered in a run, or was requested to."""
    return any(call.policy == policy for call in run.completions)


def trainable(run: Trajectory, policy: str, gate: frozenset[str]) -> bool:
    """Whether a candidate may be trained on a run: it has a reward, it has ended, and its task is none of the gate's.

    Args:
        run: A recorded run.
        policy: Name of the policy.
        gate: `input_id` of the gate's scenarios.
    """
    complete = run.scored and not run.untrained and not run.waiting
    return complete and has_completion(run, policy) and input_id(run.scenario) not in gate


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The runs of a version since a canary began.

    Args:
        outcomes: Those that were scored, and those that raised.
        unscored_count: Those without a score until now.
    """

    outcomes: Outcomes
    unscored_count: int

    def numbers(self, version: int) -> dict[str, Any]:
        """As JSON, for the history."""
        return {
            "version": version,
            "successes": self.outcomes.successes,
            "runs": self.outcomes.runs,
            "unscored": self.unscored_count,
        }


def count(runs: Iterable[Trajectory], policy: str, version: int, success: Success) -> RunCounts:
    """How the runs of a version ended.

    Runs count that asked for the policy by its name alone, as rollouts: those the server gave a version by chance. A
    run that raised is a failure, scored or not. A run without a reward is none.

    Args:
        runs: Recorded runs since the canary began.
        policy: Name of the policy.
        version: The version.
        success: Whether a scored run succeeded.
    """
    successes = runs_scored = runs_unscored = 0
    for run in runs:
        if not _drawn(run, policy) or run.versions.get(policy) != [version]:
            continue
        if run.error is not None:
            runs_scored += 1
        elif run.reward is None:
            runs_unscored += 1
        else:
            runs_scored += 1
            successes += success(run)
    return RunCounts(Outcomes(successes, runs_scored), runs_unscored)


def _drawn(run: Trajectory, policy: str) -> bool:
    """Whether the server was free to choose the version of a run."""
    free = run.rollout_id is not None and run.requested_version is None and not run.untrained and not run.waiting
    return free and all(call.model == policy for call in run.completions if call.policy == policy)
