"""What a policy's name means: its promoted version, else its newest; and the policies that this server cannot serve."""

from __future__ import annotations

import asyncio
import json
import logging
import re

from trainer_server.engines.slots import Key, adapter_name
from trainer_server.ledger.fleet import SharedPins
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import NAME_PATTERN, Candidate

log = logging.getLogger("trainer_server")

Meaning = tuple[int | None, int | None, Candidate | None, str | None]
"""Of a policy's name: its newest and its promoted version, its candidate, and why it is not served."""


class PolicyNames:
    """Name → version, for the life of a server. Questions change nothing; all other methods do.

    In a fleet, the server that trains decides what names mean, and publishes it by `announce`. The others read it by
    `refresh`.

    Args:
        store: The policies on disk.
        shared_pins: Where servers of a fleet tell one another; None: there is one server.
        trains: Whether this server decides.
    """

    def __init__(self, store: AdapterStore, shared_pins: SharedPins | None = None, *, trains: bool = True) -> None:
        self._store, self._shared, self._trains = store, shared_pins, trains
        self._changed: set[str] = set()
        """Policies of which the others do not know yet what this server decided."""
        self._announcing = asyncio.Lock()
        self.newest: dict[str, int] = {}
        """By policy: the newest version, which `name@latest` means. Engines hold it, or held it."""
        self.promoted_versions: dict[str, int] = {}
        """By policy: the version that its name means in place of the newest."""
        self.candidates: dict[str, Candidate] = {}
        """By policy: the version that is tried beside the promoted one."""
        self.trial_policies: set[str] = set()
        """Policies of which a candidate was tried since this server began."""
        self.unserved_policies: dict[str, str] = {}
        """Policies that this server cannot serve, and why."""

    def is_named(self, key: Key) -> bool:
        """Whether the policy's name, or `name@latest`, means this version, also for a share of the rollouts only."""
        policy, version = key
        candidate = self.candidates.get(policy)
        candidate_version = candidate.version if candidate else None
        return version in (self.newest.get(policy), self.promoted_versions.get(policy), candidate_version)

    def resolve(self, policy: str) -> int | None:
        """The version that the policy's name means, but for a candidate's share; None: there is no such policy."""
        return self.promoted_versions.get(policy, self.newest.get(policy))

    def problem(self, key: Key) -> str | None:
        """Why a version cannot be used, from its files; None when nothing is wrong with them."""
        return self._store.problem(*key)

    def serve(self, key: Key) -> None:
        """A version is in service: from now on it is the newest, unless a newer one is in service already."""
        self._note(key[0])
        self.newest[key[0]] = max(key[1], self.newest.get(key[0], 0))

    def promote(self, policy: str, version: int | None) -> None:
        """The policy's name means a version from now on, whatever is newer; None: it means the newest again. That ends
        a candidate."""
        self._note(policy)
        self.candidates.pop(policy, None)
        if version is None:
            self.promoted_versions.pop(policy, None)
        else:
            self.promoted_versions[policy] = version

    def forget(self, policy: str) -> None:
        """The policy is made anew: its name means nothing until a version is in service."""
        self._note(policy)
        for meanings in (self.newest, self.promoted_versions, self.candidates):
            meanings.pop(policy, None)

    def withhold(self, policy: str, why: str | None) -> None:
        """The policy cannot be served from now on, and why; None: it can."""
        self._note(policy)
        if why is None:
            self.unserved_policies.pop(policy, None)
        else:
            self.unserved_policies[policy] = why

    async def announce(self) -> None:
        """Returns once the other servers can know what was decided until now. Raises LedgerError."""
        if self._shared is None or not self._trains:
            return
        async with self._announcing:
            policies = set(self._changed)
            self._changed -= policies
            try:
                if policies:
                    await self._shared.publish({policy: _text(self.meaning(policy)) for policy in policies})
            except BaseException:
                self._changed |= policies
                raise

    async def announce_all(self) -> None:
        """Publishes all names to the other servers, as this one decides now. Raises LedgerError."""
        if self._shared is not None:
            self._changed |= {*self.newest, *self.unserved_policies, *(await self._shared.meanings())}
            await self.announce()

    async def refresh(self, policy: str | None = None) -> None:
        """Reads what the server that trains decided of a policy; None: of all. Raises LedgerError.

        What cannot be a policy's name is not looked up: any text may come from a request.
        """
        if self._shared is None or self._trains or (policy is not None and not re.fullmatch(NAME_PATTERN, policy)):
            return
        if policy is not None:
            texts = {policy: await self._shared.meaning(policy)}
        else:
            meanings = await self._shared.meanings()
            texts = {name: meanings.get(name) for name in {*meanings, *self.newest, *self.unserved_policies}}
        for name, text in texts.items():
            self.take_up(name, _read_meaning(text))

    def meaning(self, policy: str) -> Meaning:
        """The meaning of a policy's name, for `take_up`."""
        return (
            self.newest.get(policy),
            self.promoted_versions.get(policy),
            self.candidates.get(policy),
            self.unserved_policies.get(policy),
        )

    def take_up(self, policy: str, meaning: Meaning) -> None:
        """The policy's name means again what it meant when `meaning` was asked."""
        newest, promoted_version, candidate, why = meaning
        self.forget(policy)
        self.unserved_policies.pop(policy, None)
        if newest is not None:
            self.newest[policy] = newest
        if promoted_version is not None:
            self.promoted_versions[policy] = promoted_version
        if candidate is not None:
            self.try_candidate(policy, candidate)
        if why is not None:
            self.unserved_policies[policy] = why

    def _note(self, policy: str) -> None:
        """`announce` publishes the policy. Only the server that trains counts it: a gateway takes up every name
        that a request has, and would keep it for as long as it lives."""
        if self._trains:
            self._changed.add(policy)

    def try_candidate(self, policy: str, candidate: Candidate | None) -> None:
        """A version is tried beside the promoted one from now on; None: none is."""
        self._note(policy)
        if candidate is None:
            self.candidates.pop(policy, None)
        else:
            self.candidates[policy] = candidate
            self.trial_policies.add(policy)

    def quarantine(self, key: Key, why: str) -> str:
        """Takes a version out of use. If its policy's name meant it, the name means the newest version that is left.

        Args:
            key: The version.
            why: What is wrong with it.

        Returns:
            What to tell the user.
        """
        policy, version = key
        reason = self._store.quarantine_reasons(policy).get(version) or self._store.quarantine(policy, version, why)
        self.step_back(policy)
        return reason

    def refuse(self, key: Key, why: str) -> str:
        """The message for a request for a version with a problem. A version that the policy's name means is
        quarantined: what the name means must not depend on who notices the problem."""
        if self.is_named(key) and self._trains:
            return self.quarantine(key, why)
        return f"{adapter_name(key)} cannot be served: {why}. Ask for another version of it (/v1/models)."

    def step_back(self, policy: str) -> None:
        """Where the newest version is in quarantine, the one before it is the newest; a promoted version that is in
        quarantine is no longer promoted, and a candidate is no longer tried."""
        self._note(policy)
        reasons = self._store.quarantine_reasons(policy)
        candidate = self.candidates.get(policy)
        if candidate is not None and not {candidate.version, candidate.beside}.isdisjoint(reasons):
            log.error("%s@%d is no longer tried: a version is quarantined", policy, candidate.version)
            del self.candidates[policy]
        if self.promoted_versions.get(policy) in reasons:
            log.error(
                "%s@%d was promoted; %r means the newest version now",
                policy,
                self.promoted_versions.pop(policy),
                policy,
            )
        newest = self.newest.get(policy)
        if newest is not None and newest in reasons:
            before = [number for number in self._store.versions(policy) if number < newest]
            if before:
                self.newest[policy] = before[-1]
            else:
                del self.newest[policy]


def _text(meaning: Meaning) -> str | None:
    """The meaning of a name, as other servers read it."""
    newest, promoted_version, candidate, why = meaning
    if newest is None and why is None:
        return None
    content = None if candidate is None else candidate.model_dump(mode="json")
    return json.dumps({"newest": newest, "promoted": promoted_version, "candidate": content, "unserved": why})


def _read_meaning(text: str | None) -> Meaning:
    if text is None:
        return None, None, None, None
    content = json.loads(text)
    candidate = None if content["candidate"] is None else Candidate.model_validate(content["candidate"])
    return content["newest"], content["promoted"], candidate, content["unserved"]
