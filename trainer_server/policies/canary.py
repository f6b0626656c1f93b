"""Canary: a candidate answers a share of the new rollouts, and each rollout stays with the version that it began with.

Whether a rollout belongs to the share is decided once, by a hash of its id. `ledger/canary_assignments.py` stores it,
so that the rollout keeps its version also when its lease is gone: after a restart of the server, and after the trial.
"""

from __future__ import annotations

import asyncio
import hashlib

from trainer_server.ledger.base import Ledger
from trainer_server.ledger.canary_assignments import CanaryAssignments
from trainer_server.policies.leases import Leases
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import Candidate


class Canary:
    """Gives rollouts the version that a policy's name means for them.

    Args:
        names: What names mean.
        leases: Versions that running rollouts hold.
        draws: Versions that rollouts were given during trials.
        ledger: Knows the rollouts that began before a trial.
        store: Knows which versions can be used.
    """

    def __init__(
        self,
        *,
        names: PolicyNames,
        leases: Leases,
        draws: CanaryAssignments,
        ledger: Ledger,
        store: AdapterStore,
    ) -> None:
        self._names, self._leases, self._draws = names, leases, draws
        self._ledger, self._store = ledger, store
        self._tried = draws.policies()
        """Policies of which a candidate was tried before this server began. Only rollouts of policies of which one was
        ever tried are looked up."""

    async def version(self, policy: str, rollout: str | None) -> int | None:
        """The version that a policy's name means for a request; None: there is no such policy.

        Args:
            policy: Name of the policy, without a version.
            rollout: Id of the rollout that the request belongs to; None: the promoted version answers.

        Raises:
            LedgerError: What the rollout began with cannot be read, or not be written down.
        """
        version = self._names.resolve(policy)
        if version is None or rollout is None:
            return version
        candidate = self._names.candidates.get(policy)
        had_candidate = policy in self._tried or policy in self._names.trial_policies
        if had_candidate and await self._leases.held_version(rollout, policy) is None:
            version = await asyncio.to_thread(self._begun_with, policy, rollout, candidate, version)
        return await self._leases.pin(rollout, policy, version)

    def counts(self, policy: str) -> tuple[int, int]:
        """How many rollouts were drawn since the policy's candidate is tried, and how many of them it was given."""
        candidate = self._names.candidates.get(policy)
        return (0, 0) if candidate is None else self._draws.counts(policy, candidate)

    def _begun_with(self, policy: str, rollout: str, candidate: Candidate | None, named_version: int) -> int:
        """The version that a rollout without a lease was given, or is given now."""
        version = self._draws.version(policy, rollout)
        if version is None:
            version = self._find_recorded(policy, rollout)
        if version is None and candidate is not None:
            name = f"{policy}@{candidate.version}"

            def takes(draw_count: int, take_count: int) -> bool:
                within = take_count + 1 <= candidate.share * (
                    draw_count + 1
                )  # chance alone would at times give it more
                return within and in_canary(rollout, name, candidate.share)

            version = self._draws.draw(policy, rollout, candidate, takes)
        return named_version if version is None or self._store.version(policy, version) is None else version

    def _find_recorded(self, policy: str, rollout: str) -> int | None:
        """The version that answered a rollout which began before anything was drawn; None: it is new."""
        answers = (row for row in self._ledger.rollout(rollout) if row.policy == row.model == policy)
        return next((row.version for row in answers if row.version is not None), None)


def in_canary(rollout: str, candidate: str, share: float) -> bool:
    """Whether a rollout belongs to the candidate's share: always the same answer for a rollout and a candidate.

    Args:
        rollout: Id of the rollout.
        candidate: The candidate, such as `agent@7`: each draws other rollouts.
        share: Share of the rollouts, from 0 to 1.
    """
    digest = hashlib.sha256(f"{candidate}\0{rollout}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < share * 2**64
