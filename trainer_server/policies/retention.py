"""Deletes old versions. The newest ones, the best one, the promoted one, a candidate, version 0, and every version in
use stay."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trainer_server.engines.slots import Key, NoFreeSlot, Slots, adapter_name
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.process.tasks import PeriodicTask
from trainer_server.wire import ARTError, EngineError, NotFound, Version

log = logging.getLogger("trainer_server")

STATES = 3
"""The newest versions that keep their optimizer's state, two thirds of the bytes; the best and the promoted one keep it
too."""


class VersionInUse(ARTError):
    """A version cannot be deleted now."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What open jobs need, at one moment.

    Args:
        jobs: Ids of the open jobs.
        versions: Versions that they name, or whose log-probabilities they must compute anew. Slow: it reads the ledger.
    """

    jobs: tuple[str, ...]
    versions: Callable[[], set[Key]]


class Retention:
    """Deletes versions: those that a client names, and after each job those beyond `keep`.

    What is deleted after jobs is deleted by a task of its own: an adapter that is in use is waited for, and jobs go on.

    Args:
        keep: The newest versions of a policy that stay; None: all.
        store: Where versions are.
        slots: Which versions are in use.
        names: Which versions the policies' names mean.
        needs: What open jobs need now.
    """

    def __init__(
        self,
        *,
        keep: int | None,
        store: AdapterStore,
        slots: Slots,
        names: PolicyNames,
        needs: Callable[[], Needs],
    ) -> None:
        self._keep, self._store, self._slots, self._names, self._needs = keep, store, slots, names, needs
        self._held: Counter[Key] = Counter()
        self._due: dict[str, None] = {}
        """Policies that `later` named and no sweep has begun with; each once."""
        self._wake = asyncio.Event()
        self._task = PeriodicTask("deletion of old versions", self._next)

    @property
    def failure(self) -> str | None:
        """Why old versions cannot be deleted; None where they can."""
        return self._task.failure

    def start(self) -> None:
        """Starts the task that `later` gives its work to."""
        self._task.start()

    async def stop(self) -> None:
        """Ends the task. What it had not deleted is deleted after the policy's next job."""
        await self._task.stop()

    def later(self, policy: str) -> None:
        """Has the task delete what need not stay of a policy."""
        if self._keep is not None:
            self._due[policy] = None
            self._wake.set()

    @contextmanager
    def hold(self, key: Key) -> Iterator[None]:
        """Keeps a version for as long as its files are read."""
        self._held[key] += 1
        try:
            yield
        finally:
            self._held[key] -= 1

    def reading(self, key: Key) -> bool:
        """Whether the files of a version are being read, as for an export."""
        return self._held[key] > 0

    async def delete(self, policy: str, version: int) -> None:
        """Deletes a version that a client names.

        Raises:
            VersionInUse: It is the newest version, or a job, an export or a rollout needs it.
            NotFound: It was deleted meanwhile.
            EngineError: An engine does not give it up.
        """
        key = policy, version
        while True:
            needs = self._needs()
            job_versions = await asyncio.to_thread(needs.versions)
            self._refuse(key, job_versions)
            try:
                await self._slots.forget(key)
            except NoFreeSlot as error:
                raise VersionInUse(str(error)) from None
            try:
                self._refuse(key, job_versions)
                if self._needs().jobs == needs.jobs:
                    files = self._store.withdraw(policy, version)  # no waiting since the last look
                    break
            except FileNotFoundError:
                raise NotFound(f"{adapter_name(key)} was deleted meanwhile", code="not_found") from None
            finally:
                await self._slots.reopen(key)
        await asyncio.to_thread(shutil.rmtree, files, ignore_errors=True)  # what is left, the next start deletes

    async def sweep(self, policy: str) -> list[int]:
        """Deletes what need not stay; returns the versions. What is in use is tried again after the next job."""
        deletions: list[int] = []
        if self._keep is None:
            return deletions
        versions = await asyncio.to_thread(self._store.versions, policy)
        versions_to_keep = await asyncio.to_thread(self._versions_to_keep, policy)
        for number in versions[: -self._keep]:
            if number not in {0, *versions_to_keep}:
                try:
                    await self.delete(policy, number)
                    deletions.append(number)
                except (VersionInUse, NotFound, EngineError) as error:
                    log.info("%s@%d stays for now: %s", policy, number, error)
        job_versions = await asyncio.to_thread(self._needs().versions)
        await asyncio.to_thread(self._delete_states, policy, versions_to_keep, job_versions)
        return deletions

    def best(self, policy: str) -> int | None:
        """The best version: by scores of clients, or, where there are none, by mean rewards of rollouts.

        Of versions that clients score equally it is the earliest, which is nearest to the base model; of those whose
        rollouts have equal rewards the latest. None: no version has a score.
        """
        records = [record for n in self._store.versions(policy) if (record := self._store.version(policy, n))]
        if with_scores := [record for record in records if record.scored_by == "evaluation"]:
            return max(with_scores, key=lambda record: (_score(record), -record.version)).version
        with_rewards = [record for record in records if record.scored_by]
        return max(with_rewards, key=lambda record: (_score(record), record.version)).version if with_rewards else None

    def credit(self, policy: str, job_id: str, metrics: Mapping[str, Any]) -> None:
        """Adds the rewards that a step was sent to the scores of the versions that sampled its trajectories.

        Args:
            policy: Name of the policy.
            job_id: Id of the step's job.
            metrics: Of the step, also of one that had nothing to learn from.
        """
        try:
            for number, rewards in (metrics.get("reward_by_version") or {}).items():
                self._store.credit(policy, int(number), rewards["mean"], rewards["trajectories"], job_id)
        except Exception:  # recorded; a job does not fail because a score could not be written
            log.exception("the rewards of %s were not added to the scores of %s", job_id, policy)

    async def _next(self) -> None:
        while not self._due:
            self._wake.clear()
            await self._wake.wait()
        policy = next(iter(self._due))
        del self._due[policy]
        try:
            await self.sweep(policy)
        except Exception:  # of the ledger or the disk: the next round tries again
            self.later(policy)
            raise

    def _versions_to_keep(self, policy: str) -> set[int]:
        """Versions that stay with their optimizer's state, however old they are."""
        candidate = self._store.candidate(policy)
        numbers = self.best(policy), self._store.promoted_version(policy), candidate.version if candidate else None
        return {number for number in numbers if number is not None}

    def _delete_states(self, policy: str, kept_versions: set[int], named_versions: set[Key]) -> None:
        assert self._keep is not None
        for number in self._store.versions(policy)[: -min(self._keep, STATES)]:
            if number not in kept_versions and (policy, number) not in named_versions:
                self._store.delete_state(policy, number)

    def _refuse(self, key: Key, named_versions: set[Key]) -> None:
        policy, version = key
        if version in (self._store.newest(policy), self._names.newest.get(policy)):
            raise VersionInUse(f"{adapter_name(key)} is the newest version and cannot be deleted")
        if version == self._names.promoted_versions.get(policy):
            raise VersionInUse(f"{adapter_name(key)} is promoted and cannot be deleted: promote another version first")
        candidate = self._names.candidates.get(policy)
        if candidate is not None and version == candidate.version:
            raise VersionInUse(f"{adapter_name(key)} is served as a candidate: end that first (DELETE …/candidate)")
        if key in named_versions:
            raise VersionInUse(f"{adapter_name(key)} is named by a job that is not done; delete it when that has ended")
        if self._held[key]:
            raise VersionInUse(f"{adapter_name(key)} is being exported; delete it when that has ended")
        if self._slots.in_use(key):
            raise VersionInUse(f"{adapter_name(key)} is in use by a rollout; delete it when that has ended")


def _score(record: Version) -> float:
    assert record.score is not None
    return record.score
