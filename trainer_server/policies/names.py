"""What a policy's name means: its promoted version, else its newest; and the policies that this server cannot serve."""

from __future__ import annotations

import logging

from trainer_server.engines.slots import Key, adapter_name
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import Candidate

log = logging.getLogger("trainer_server")


class PolicyNames:
    """Name → version, for the life of a server. Questions change nothing; all other methods do."""

    def __init__(self, store: AdapterStore) -> None:
        self._store = store
        self.newest: dict[str, int] = {}
        """By policy: the newest version, which `name@latest` means. Engines hold it, or held it."""
        self.promoted: dict[str, int] = {}
        """By policy: the version that its name means in place of the newest."""
        self.candidates: dict[str, Candidate] = {}
        """By policy: the version that is tried beside the promoted one."""
        self.unserved: dict[str, str] = {}
        """Policies that this server cannot serve, and why."""

    def is_named(self, key: Key) -> bool:
        """Whether the policy's name, or `name@latest`, means this version, also for a share of the rollouts only."""
        policy, version = key
        candidate = self.candidates.get(policy)
        tried = candidate.version if candidate else None
        return version in (self.newest.get(policy), self.promoted.get(policy), tried)

    def meant(self, policy: str) -> int | None:
        """The version that the policy's name means, but for a candidate's share; None: there is no such policy."""
        return self.promoted.get(policy, self.newest.get(policy))

    def problem(self, key: Key) -> str | None:
        """Why a version cannot be used, from its files; None when nothing is wrong with them."""
        return self._store.problem(*key)

    def serve(self, key: Key) -> None:
        """A version is in service: from now on it is the newest, unless a newer one is in service already."""
        self.newest[key[0]] = max(key[1], self.newest.get(key[0], 0))

    def promote(self, policy: str, version: int | None) -> None:
        """The policy's name means a version from now on, whatever is newer; None: it means the newest again. That ends
        a candidate."""
        self.candidates.pop(policy, None)
        if version is None:
            self.promoted.pop(policy, None)
        else:
            self.promoted[policy] = version

    def forget(self, policy: str) -> None:
        """The policy is made anew: its name means nothing until a version is in service."""
        for meanings in (self.newest, self.promoted, self.candidates):
            meanings.pop(policy, None)

    def known(self, policy: str) -> tuple[int | None, int | None, Candidate | None, str | None]:
        """All that is known of a policy's name, for `take_up`."""
        return (
            self.newest.get(policy),
            self.promoted.get(policy),
            self.candidates.get(policy),
            self.unserved.get(policy),
        )

    def take_up(self, policy: str, known: tuple[int | None, int | None, Candidate | None, str | None]) -> None:
        """The policy's name means again what it meant when `known` was asked."""
        newest, promoted, candidate, why = known
        self.forget(policy)
        self.unserved.pop(policy, None)
        if newest is not None:
            self.newest[policy] = newest
        if promoted is not None:
            self.promoted[policy] = promoted
        if candidate is not None:
            self.candidates[policy] = candidate
        if why is not None:
            self.unserved[policy] = why

    def try_candidate(self, policy: str, candidate: Candidate | None) -> None:
        """A version is tried beside the promoted one from now on; None: none is."""
        if candidate is None:
            self.candidates.pop(policy, None)
        else:
            self.candidates[policy] = candidate

    def quarantine(self, key: Key, why: str) -> str:
        """Takes a version out of use. If its policy's name meant it, the name means the newest version that is left.

        Args:
            key: The version.
            why: What is wrong with it.

        Returns:
            What to tell the user.
        """
        policy, version = key
        reason = self._store.quarantined(policy).get(version) or self._store.quarantine(policy, version, why)
        self.step_back(policy)
        return reason

    def refuse(self, key: Key, why: str) -> str:
        """What a request for a version with a problem is told. A version that the policy's name means is quarantined:
        what the name means must not depend on who notices the problem."""
        if self.is_named(key):
            return self.quarantine(key, why)
        return f"{adapter_name(key)} cannot be served: {why}. Ask for another version of it (/v1/models)."

    def step_back(self, policy: str) -> None:
        """Where the newest version is in quarantine, the one before it is the newest; a promoted version that is in
        quarantine is no longer promoted, and a candidate is no longer tried."""
        quarantined = self._store.quarantined(policy)
        candidate = self.candidates.get(policy)
        if candidate is not None and not {candidate.version, candidate.beside}.isdisjoint(quarantined):
            log.error("%s@%d is no longer tried: a version is quarantined", policy, candidate.version)
            del self.candidates[policy]
        if self.promoted.get(policy) in quarantined:
            log.error("%s@%d was promoted; %r means the newest version now", policy, self.promoted.pop(policy), policy)
        newest = self.newest.get(policy)
        if newest is not None and newest in quarantined:
            before = [number for number in self._store.versions(policy) if number < newest]
            if before:
                self.newest[policy] = before[-1]
            else:
                del self.newest[policy]
