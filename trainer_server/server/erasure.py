"""Deletes what users name, with all that is left of it: in the ledger, the list of runs, the jobs and the policies.

A deletion that was broken off can be repeated, and is then complete: the records that lead to the others go last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence

from trainer_server.engines.slots import Key, NoFreeSlot, adapter_name
from trainer_server.ledger.base import ErasesCompletions
from trainer_server.ledger.records import read_few
from trainer_server.server.server import Server
from trainer_server.wire import Completion, Conflict, Erase, Erased, NotFound, NotStored

_WAIT = "delete it when the job has ended, or cancel the job (`art-langgraph jobs cancel`)"
_AT_ONCE = 100
"""Completions that are read at once: each may have megabytes."""
_BEING_DELETED = "policy {!r} is being deleted"


async def erase_runs(server: Server, request: Erase) -> Erased:
    """Deletes rollouts and completions.

    Args:
        server: The server.
        request: Their ids; unknown ids are ignored.

    Raises:
        Conflict: An open job needs one of them, or the ledger cannot delete.
        LedgerError: A file could not be changed.
    """
    ledger = _erasing_ledger(server)
    async with server.erasure, server.jobs.acceptance:  # a job that comes meanwhile may need them
        with server.archive.hold_lock():

            def matching() -> dict[str, str | None]:
                in_archive = server.archive.matching(rollouts=request.rollouts, completions=request.completions)
                return in_archive | ledger.matching(rollouts=request.rollouts, completions=request.completions)

            completions = await asyncio.to_thread(matching)
            _refuse_needed(server, completions)
            await server.leases.release(set(request.rollouts))
            server.records.drop(set(request.rollouts))
            result = await asyncio.to_thread(_erase, server, ledger, request.rollouts, list(completions), None)
            server.gateway.erase(request.rollouts, {*completions, *request.completions})
            return result


async def erase_policy(server: Server, name: str) -> Erased:
    """Deletes a policy: its versions, its jobs, its completions, and the runs in which it answered.

    Args:
        server: The server.
        name: Of the policy, also of one that cannot be served.

    Raises:
        NotFound: There is none.
        Conflict: A job, a rollout or an export needs it, or the ledger cannot delete.
        EngineError: An engine does not give an adapter up.
        NotStored: Its files could not be deleted.
        LedgerError: A file could not be changed.
    """
    ledger, names = _erasing_ledger(server), server.names
    async with server.erasure, server.creating[name]:
        if name not in await asyncio.to_thread(server.store.names):
            raise NotFound(f"there is no policy {name!r}", code="not_found")
        versions = [(name, number) for number in await asyncio.to_thread(server.store.versions, name)]
        _refuse_used(server, name, versions)
        meaning = names.meaning(name)
        names.forget(name)
        names.withhold(name, _BEING_DELETED.format(name))  # so that no job and no request begins to use it
        keys: list[Key] = []
        try:
            await names.announce()
            for key in versions:
                await server.slots.forget(key)
                keys.append(key)
            async with server.jobs.acceptance:  # a job that was checked before the policy was withheld
                _refuse_used(server, name, versions)
                with server.archive.hold_lock():
                    result, rollouts, completions = await asyncio.to_thread(_erase_policy, server, ledger, name)
            server.gateway.erase(rollouts, completions)
            return result.model_copy(update={"versions": len(versions)})
        except NoFreeSlot as error:
            raise Conflict(str(error), code="policy_in_use", param="name") from None
        except OSError as error:
            raise NotStored(f"policy {name!r} could not be deleted: {error}. Ask again", code="disk") from None
        finally:
            if name in await asyncio.to_thread(server.store.names):  # it failed
                names.take_up(name, meaning)
            else:
                names.withhold(name, None)
            for key in keys:
                await server.slots.reopen(key)
            await names.announce()


def _erase_policy(server: Server, ledger: ErasesCompletions, name: str) -> tuple[Erased, set[str], Collection[str]]:
    """Returns what was deleted, and the ids of rollouts and completions."""
    completions = server.archive.matching(policy=name) | ledger.matching(policy=name)
    # Traces that clients send decide nothing: they may name the policy of somebody else.
    rollouts = {rollout for rollout in completions.values() if rollout is not None}
    rollouts |= server.rollouts.of_policy(name) | server.runs.of_policy(name)
    rollouts = _erasable_rollouts(server, ledger, name, rollouts, completions)
    completions |= server.archive.matching(rollouts=rollouts) | ledger.matching(rollouts=sorted(rollouts))
    _refuse_needed(server, completions)
    result = _erase(server, ledger, sorted(rollouts), list(completions), name)
    server.store.delete_policy(name)
    return result, rollouts, completions.keys()


def _erasable_rollouts(
    server: Server,
    ledger: ErasesCompletions,
    policy: str,
    rollouts: Collection[str],
    completions: Mapping[str, str | None],
) -> set[str]:
    """The rollouts that are deleted with a policy. Of those that ran here, this server's own rows decide: whoever
    brings rows of another server names their rollouts and policies, perhaps before such a rollout runs here.

    Args:
        server: The server.
        ledger: Has the completions.
        policy: Name of the policy.
        rollouts: Those in which it answered, by rows and traces of any origin.
        completions: Those of the policy, with their rollouts.
    """
    own_id = server.identity.server_id
    one_of_each = {rollout: completion for completion, rollout in completions.items() if rollout is not None}
    certain = {row.rollout for row in _rows(server, [*one_of_each.values()]) if row.server_id == own_id}
    others = [rollout for rollout in rollouts if rollout not in certain]
    of_others = server.archive.matching(rollouts=others) | ledger.matching(rollouts=others) if others else {}
    policies: dict[str | None, set[str | None]] = {}
    """By rollout that ran here."""
    for row in _rows(server, [*of_others]):
        if row.server_id == own_id:
            policies.setdefault(row.rollout, set()).add(row.policy)
    return {rollout for rollout in rollouts if rollout in certain or policy in policies.get(rollout, {policy})}


def _rows(server: Server, ids: Sequence[str]) -> Iterator[Completion]:
    """Completions of the ledger and of the archive."""
    missing = dict.fromkeys(ids)
    for row in read_few(server.ledger, ids, _AT_ONCE):
        del missing[row.id]
        yield row
    yield from server.archive.completions(missing)


def _erase(
    server: Server, ledger: ErasesCompletions, rollouts: Sequence[str], completions: Sequence[str], policy: str | None
) -> Erased:
    jobs = server.jobs.queue.ended_jobs(policy, set(completions))
    server.jobs.queue.erase(jobs, policy)
    server.runs.erase(rollouts, policy)
    server.draws.erase(rollouts, policy)
    server.rollouts.erase(rollouts)
    of_policy = server.archive.matching(policy=policy) if policy is not None else {}
    server.archive.erase(set(completions) - of_policy.keys())
    rewritten = ledger.erase(completions)
    server.archive.erase(of_policy)  # last: it leads to the rollouts, of which the ledger may have other answers
    server.runs.erase(rollouts, policy)  # the list may have read the ledger meanwhile
    rewritten = server.runs.overwrite() and rewritten
    return Erased(rollouts=len(rollouts), completions=len(completions), jobs=len(jobs), rewritten=rewritten)


def _erasing_ledger(server: Server) -> ErasesCompletions:
    if isinstance(server.ledger, ErasesCompletions):
        return server.ledger
    raise Conflict(
        f"the ledger ({type(server.ledger).__name__}) cannot delete what a user names: it lacks `matching` and "
        "`erase` (ErasesCompletions)",
        code="ledger_keeps",
    )


def _refuse_needed(server: Server, completions: Mapping[str, str | None]) -> None:
    """Raises Conflict where an open job, of whichever policy, needs one of the completions."""
    for file in server.jobs.open.files():
        if not completions.keys().isdisjoint(file.completions):
            raise Conflict(f"{file.id} has not ended, and needs it: {_WAIT}", code="job_open")


def _refuse_used(server: Server, name: str, versions: Sequence[Key]) -> None:
    for file in server.jobs.open.files():
        if file.policy == name or any(policy == name for policy, _ in file.versions):
            raise Conflict(f"{file.id} has not ended, and needs {name!r}: {_WAIT}", code="policy_in_use")
    for key in versions:
        if server.slots.in_use(key):
            message = f"{adapter_name(key)} is in use by a rollout: delete it when that has ended"
            raise Conflict(message, code="policy_in_use")
        if server.jobs.retention.reading(key):
            message = f"{adapter_name(key)} is being exported: delete it when that has ended"
            raise Conflict(message, code="policy_in_use")
