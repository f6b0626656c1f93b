"""Deletes old versions. The newest ones, the best one, version 0, and every version in use stay on disk."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trainer_server.engines.slots import Key, NoFreeSlot, Slots, adapter_name
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import ARTError, EngineError, Version

log = logging.getLogger("trainer_server")

STATES = 3
"""The newest versions that keep their optimizer's state, two thirds of the bytes; the best one keeps it too."""


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

    @contextmanager
    def hold(self, key: Key) -> Iterator[None]:
        """Keeps a version for as long as its files are read."""
        self._held[key] += 1
        try:
            yield
        finally:
            self._held[key] -= 1

    async def delete(self, policy: str, version: int) -> None:
        """Deletes a version that a client names.

        Raises:
            VersionInUse: It is the newest version, or a job, an export or a rollout needs it.
            EngineError: An engine does not give it up.
        """
        key = policy, version
        while True:
            needs = self._needs()
            named = await asyncio.to_thread(needs.versions)
            self._refuse(key, named)
            try:
                await self._slots.forget(key)
            except NoFreeSlot as error:
                raise VersionInUse(str(error)) from None
            self._refuse(key, named)
            if self._needs().jobs == needs.jobs:
                break
        self._store.delete(policy, version)  # no waiting since the last look: nobody can have begun to use it

    async def sweep(self, policy: str) -> list[int]:
        """Deletes what need not stay; returns the versions. What fails is tried again after the next job."""
        gone: list[int] = []
        try:
            self._rate(policy)
            if self._keep is None:
                return gone
            versions = self._store.versions(policy)
            best = self.best(policy)
            for number in versions[: -self._keep]:
                if number not in (0, best):
                    try:
                        await self.delete(policy, number)
                        gone.append(number)
                    except (VersionInUse, EngineError) as error:
                        log.info("%s@%d stays for now: %s", policy, number, error)
            named = await asyncio.to_thread(self._needs().versions)
            for number in self._store.versions(policy)[: -min(self._keep, STATES)]:
                if number != best and (policy, number) not in named:
                    self._store.delete_state(policy, number)
        except Exception:  # recorded; jobs are not held up by what is left lying about
            log.exception("old versions of %s could not be deleted", policy)
        return gone

    def best(self, policy: str) -> int | None:
        """The best version: by scores of clients, or, where there are none, by mean rewards of rollouts.

        Of equally good versions it is the latest. None: no version has a score.
        """
        found = [record for n in self._store.versions(policy) if (record := self._record(policy, n))]
        scored = [one for one in found if one.scored_by == "evaluation"] or [one for one in found if one.scored_by]
        return max(scored, key=_merit).version if scored else None

    def _rate(self, policy: str) -> None:
        """Scores the version that a step started from by the mean reward of its rollouts, unless it has a score."""
        numbers = self._store.versions(policy)[-1:]
        record = self._record(policy, numbers[0]) if numbers else None
        if record is None or record.made_from is None:
            return
        source = self._record(policy, record.made_from)
        reward = record.metrics.get("reward_mean")
        if source and source.scored_by is None and isinstance(reward, float):
            self._store.score(policy, source.version, reward, "rollouts")

    def _record(self, policy: str, version: int) -> Version | None:
        """A version's record; None if it is missing or damaged."""
        try:
            return self._store.version(policy, version)
        except ValueError as error:
            log.warning("%s has no score: its record is damaged: %s", adapter_name((policy, version)), error)
            return None

    def _refuse(self, key: Key, named: set[Key]) -> None:
        policy, version = key
        if version in (self._store.versions(policy)[-1], self._names.newest.get(policy)):
            raise VersionInUse(f"{adapter_name(key)} is the newest version and cannot be deleted")
        if key in named:
            raise VersionInUse(f"{adapter_name(key)} is named by a job that is not done; delete it when that has ended")
        if self._held[key]:
            raise VersionInUse(f"{adapter_name(key)} is being exported; delete it when that has ended")
        if self._slots.in_use(key):
            raise VersionInUse(f"{adapter_name(key)} is in use by a rollout; delete it when that has ended")


def _merit(record: Version) -> tuple[float, int]:
    assert record.score is not None
    return record.score, record.version
