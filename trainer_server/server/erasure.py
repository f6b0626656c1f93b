"""Deletes what users name, with all that is left of it: in the ledger, the list of runs, the jobs and the policies.

The order makes a deletion that was broken off complete when it is asked for again: what tells where the rest is goes
last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from trainer_server.engines.slots import Key, NoFreeSlot, Slots, adapter_name
from trainer_server.gateway.errors import APIError
from trainer_server.jobs.service import JobService
from trainer_server.ledger.archive import Archive
from trainer_server.ledger.base import ErasesCompletions, Ledger
from trainer_server.ledger.canary_assignments import CanaryAssignments
from trainer_server.ledger.records import read_few
from trainer_server.ledger.rollouts import RolloutRepository
from trainer_server.ledger.run_repository import RunRepository
from trainer_server.policies.leases import Leases
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.server.remote_runs import RemoteRunBuffer
from trainer_server.wire import Completion, Conflict, EngineError, Erase, Erased, NotFound, NotStored

_WAIT = "delete it when the job has ended, or cancel the job (`art-langgraph jobs cancel`)"
_AT_ONCE = 100
"""Completions that are read at once: each may have megabytes."""
_BEING_DELETED = "policy {!r} is being deleted"


class Erasure:
    """Deletes rollouts and policies, one request at a time.

    Args:
        server_id: Id of this server.
        ledger: Has the completions.
        archive: Has those of earlier months.
        rollouts: What rollouts were registered with, and their rewards.
        runs: The list of runs, and what clients told of them.
        draws: Which rollouts a candidate answered.
        jobs: The jobs.
        store: The policies on disk.
        names: What their names mean.
        slots: The adapters on the engines.
        leases: Which versions running rollouts hold.
        records: What remote graphs told of running rollouts.
        creating: By policy: one creation, promotion or deletion at a time.
        forget: Called with rollouts and completions that were deleted: forgets what is in memory of them.
    """

    def __init__(
        self,
        *,
        server_id: str,
        ledger: Ledger,
        archive: Archive,
        rollouts: RolloutRepository,
        runs: RunRepository,
        draws: CanaryAssignments,
        jobs: JobService,
        store: AdapterStore,
        names: PolicyNames,
        slots: Slots,
        leases: Leases,
        records: RemoteRunBuffer,
        creating: Mapping[str, asyncio.Lock],
        forget: Callable[[Collection[str], Collection[str]], None],
    ) -> None:
        self._server_id, self._ledger, self._archive = server_id, ledger, archive
        self._rollouts, self._runs, self._draws = rollouts, runs, draws
        self._jobs, self._store, self._names, self._slots = jobs, store, names, slots
        self._leases, self._records, self._creating = leases, records, creating
        self._forget = forget
        self._turn = asyncio.Lock()

    async def runs(self, request: Erase) -> Erased:
        """Deletes rollouts and completions.

        Args:
            request: Their ids; unknown ids are ignored.

        Raises:
            Conflict: An open job needs one of them, or the ledger cannot delete.
            LedgerError: A file could not be changed.
        """
        ledger = self._erasing()
        async with self._turn:
            with self._archive.hold_lock():
                return await self._erase_runs(ledger, request)

    async def _erase_runs(self, ledger: ErasesCompletions, request: Erase) -> Erased:
        def matching() -> dict[str, str | None]:
            archived = self._archive.matching(rollouts=request.rollouts, completions=request.completions)
            return archived | ledger.matching(rollouts=request.rollouts, completions=request.completions)

        completions = await asyncio.to_thread(matching)
        self._refuse_needed(completions)
        await self._leases.release(set(request.rollouts))
        self._records.drop(set(request.rollouts))
        erased = await asyncio.to_thread(self._erase, ledger, request.rollouts, list(completions), None)
        self._forget(request.rollouts, {*completions, *request.completions})
        return erased

    async def policy(self, name: str) -> Erased:
        """Deletes a policy: its versions, its jobs, its completions, and the runs in which it answered.

        Args:
            name: Of the policy, also of one that cannot be served.

        Raises:
            NotFound: There is none.
            Conflict: A job, a rollout or an export needs it, or the ledger cannot delete.
            APIError: 503, an engine does not give an adapter up.
            NotStored: Its files could not be deleted.
            LedgerError: A file could not be changed.
        """
        ledger = self._erasing()
        async with self._turn, self._creating[name]:
            if name not in await asyncio.to_thread(self._store.names):
                raise NotFound(f"there is no policy {name!r}", code="not_found")
            versions = [(name, number) for number in await asyncio.to_thread(self._store.versions, name)]
            self._refuse_used(name, versions)
            known = self._names.meaning(name)
            self._names.forget(name)
            self._names.withhold(name, _BEING_DELETED.format(name))  # so that no job and no request begins to use it
            forgotten: list[Key] = []
            try:
                await self._names.announce()
                for key in versions:
                    await self._slots.forget(key)
                    forgotten.append(key)
                self._refuse_used(name, versions)
                with self._archive.hold_lock():
                    erased, rollouts, completions = await asyncio.to_thread(self._erase_policy, ledger, name)
                self._forget(rollouts, completions)
                return erased.model_copy(update={"versions": len(versions)})
            except (NoFreeSlot, EngineError) as error:
                if isinstance(error, NoFreeSlot):
                    raise Conflict(str(error), code="policy_in_use", param="name") from None
                raise APIError(503, str(error), code="engine_not_ready", retry_after=5) from None
            except OSError as error:
                raise NotStored(f"policy {name!r} could not be deleted: {error}. Ask again", code="disk") from None
            finally:
                if name in await asyncio.to_thread(self._store.names):  # it failed
                    self._names.take_up(name, known)
                else:
                    self._names.withhold(name, None)
                for key in forgotten:
                    await self._slots.reopen(key)
                await self._names.announce()

    def _erase_policy(self, ledger: ErasesCompletions, name: str) -> tuple[Erased, set[str], Collection[str]]:
        """Returns what was deleted, and the ids of rollouts and completions."""
        completions = self._archive.matching(policy=name) | ledger.matching(policy=name)
        # What a client says of a run decides nothing: it may name the policy of somebody else.
        rollouts = {rollout for rollout in completions.values() if rollout is not None}
        rollouts |= self._rollouts.of_policy(name) | self._runs.of_policy(name)
        rollouts = self._erasable_rollouts(ledger, name, rollouts, completions)
        completions |= self._archive.matching(rollouts=rollouts) | ledger.matching(rollouts=sorted(rollouts))
        erased = self._erase(ledger, sorted(rollouts), list(completions), name)
        self._store.delete_policy(name)
        return erased, rollouts, completions.keys()

    def _erasable_rollouts(
        self, ledger: ErasesCompletions, policy: str, rollouts: Collection[str], completions: Mapping[str, str | None]
    ) -> set[str]:
        """The rollouts that are deleted with a policy. Of those that ran here, this server's own rows decide: whoever
        brings rows of another server names their rollouts and policies, perhaps before such a rollout runs here.

        Args:
            ledger: Has the completions.
            policy: Name of the policy.
            rollouts: Those in which it answered, whoever says so.
            completions: Those of the policy, with their rollouts.
        """
        one_of_each = {rollout: completion for completion, rollout in completions.items() if rollout is not None}
        decided = {row.rollout for row in self._rows([*one_of_each.values()]) if row.server_id == self._server_id}
        others = [rollout for rollout in rollouts if rollout not in decided]
        of_others = self._archive.matching(rollouts=others) | ledger.matching(rollouts=others) if others else {}
        ran: dict[str | None, set[str | None]] = {}
        for row in self._rows([*of_others]):
            if row.server_id == self._server_id:
                ran.setdefault(row.rollout, set()).add(row.policy)
        return {rollout for rollout in rollouts if rollout in decided or policy in ran.get(rollout, {policy})}

    def _rows(self, ids: Sequence[str]) -> Iterator[Completion]:
        """Completions of the ledger and of the archive."""
        missing = dict.fromkeys(ids)
        for row in read_few(self._ledger, ids, _AT_ONCE):
            del missing[row.id]
            yield row
        yield from self._archive.completions(missing)

    def _erase(
        self, ledger: ErasesCompletions, rollouts: Sequence[str], completions: Sequence[str], policy: str | None
    ) -> Erased:
        jobs = self._jobs.queue.ended_jobs(policy, set(completions))
        self._jobs.queue.erase(jobs, policy)
        self._runs.erase(rollouts, policy)
        self._draws.erase(rollouts, policy)
        self._rollouts.erase(rollouts)
        of_policy = self._archive.matching(policy=policy) if policy is not None else {}
        self._archive.erase(set(completions) - of_policy.keys())
        rewritten = ledger.erase(completions)
        self._archive.erase(of_policy)  # last: it tells the rollouts, of which the ledger may have other answers
        self._runs.erase(rollouts, policy)  # the list may have read the ledger meanwhile
        rewritten = self._runs.overwrite() and rewritten
        return Erased(rollouts=len(rollouts), completions=len(completions), jobs=len(jobs), rewritten=rewritten)

    def _erasing(self) -> ErasesCompletions:
        if isinstance(self._ledger, ErasesCompletions):
            return self._ledger
        raise Conflict(
            f"the ledger ({type(self._ledger).__name__}) cannot delete what a user names: it lacks `matching` and "
            "`erase` (ErasesCompletions)",
            code="ledger_keeps",
        )

    def _refuse_needed(self, completions: Mapping[str, str | None]) -> None:
        for file in self._jobs.open.files():
            if not completions.keys().isdisjoint(file.completions):
                raise Conflict(f"{file.id} has not ended, and needs it: {_WAIT}", code="job_open")

    def _refuse_used(self, name: str, versions: Sequence[Key]) -> None:
        for file in self._jobs.open.files():
            if file.policy == name or any(policy == name for policy, _ in file.versions):
                raise Conflict(f"{file.id} has not ended, and needs {name!r}: {_WAIT}", code="policy_in_use")
        for key in versions:
            if self._slots.in_use(key):
                message = f"{adapter_name(key)} is in use by a rollout: delete it when that has ended"
                raise Conflict(message, code="policy_in_use")
            if self._jobs.retention.reading(key):
                message = f"{adapter_name(key)} is being exported: delete it when that has ended"
                raise Conflict(message, code="policy_in_use")
