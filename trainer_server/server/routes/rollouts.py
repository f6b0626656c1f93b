"""`/api/rollouts`: what rollouts are and what they did, their rewards, and their leases on policy versions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Path, Query, Request, Response
from pydantic import BaseModel, FailFast, RootModel, ValidationError

from trainer_server.common.jsonl import from_json, to_json
from trainer_server.gateway.body import MOST_API_VALUES, check_values, read_json
from trainer_server.gateway.errors import APIError
from trainer_server.ledger.records import record_of, rows_of
from trainer_server.ledger.run_repository import ReportedRun
from trainer_server.server.access.request_log import note
from trainer_server.server.dependencies import RolloutRoute, ServerDep
from trainer_server.server.erasure import erase_runs
from trainer_server.server.server import Server
from trainer_server.wire import (
    ROLLOUT_PATTERN,
    Completion,
    Erase,
    Erased,
    NotFound,
    Registration,
    Reward,
    RolloutList,
    RolloutRecord,
    RolloutSpec,
    RunTrace,
    RunTraces,
    TracesTaken,
    Unprocessable,
    reward_problem,
    rollout_path,
)
from trainer_server.wire.bounds import ANSWER_TOO_LARGE, MOST_ANSWER, MOST_ROWS
from trainer_server.wire.numbers import ARRIVAL

M = TypeVar("M", bound=BaseModel)

router = APIRouter(prefix="/api/rollouts", tags=["rollouts"], route_class=RolloutRoute)

NewRolloutId = Annotated[str, Path(pattern=ROLLOUT_PATTERN)]
_LATEST = 2**62
_AT_ONCE = 1000
"""Rollouts that are released without a break."""


@router.get("")
async def list_rollouts(
    server: ServerDep,
    policy: str | None = None,
    rewarded: bool | None = None,
    after: Annotated[int, Query(ge=0, lt=_LATEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> RolloutList:
    """Rollouts that were registered or rewarded, oldest first: at most `limit`, those behind `after` (`next` of the
    page before). `policy`: only those in which it had answered when they got their reward. `rewarded`: only those with
    a reward, or without."""
    rollouts, last = await asyncio.to_thread(
        server.rollouts.list_rollouts, after=after, limit=limit, policy=policy, rewarded=rewarded
    )
    return RolloutList(rollouts=rollouts, next=last)


@router.put("/{rollout}")
async def register(rollout: NewRolloutId, spec: RolloutSpec, server: ServerDep) -> Registration:
    """Says what a rollout is, before its first request: its scenario, and the version and temperature that all its
    requests are answered with. The same request again changes nothing; another one takes the place of the first."""

    def take() -> None:
        check_values(spec.model_dump())
        server.rollouts.register(rollout, spec)

    await asyncio.to_thread(take)
    await server.names.refresh()
    return Registration(id=rollout, policies=sorted(server.names.newest))


@router.get("/{rollout}", response_model=RolloutRecord)
async def show_rollout(rollout: str, server: ServerDep, messages: bool = True) -> Response:
    """What a rollout did: its completions in order, its tool calls with their results, its rewards. The JSON is a
    Trajectory of the Python client.

    `messages=false` leaves out the messages of requests, but for the first, and with them the results of tool calls.
    413 (`answer_too_large`) for messages of more than 64 MiB.
    """

    def read() -> str:
        if (completions := rows_of(server.ledger, rollout, MOST_ANSWER, requests=messages)) is None:
            remedy = "" if not messages else "ask with ?messages=false, without the messages of requests; or "
            raise APIError(
                413,
                f"the messages of rollout {rollout!r:.100} have more than {MOST_ANSWER // 2**20} MiB: {remedy}ask for "
                "its completions, one by one: GET /api/completions/ID",
                code=ANSWER_TOO_LARGE,
                param="messages",
            )
        _check_known(server, rollout, completions)
        return to_json(_record(server, rollout, completions))

    return Response(await asyncio.to_thread(read), media_type="application/json")


@router.post("/{rollout}/reward", response_model=RolloutRecord)
async def give_reward(rollout: str, reward: Reward, server: ServerDep) -> Response:
    """Gives a rollout a reward. The last one counts, and earlier ones are kept. Answers the whole rollout; one that is
    too large, without the messages of requests."""
    if wrong := reward_problem(reward.reward):
        raise Unprocessable(wrong, code="invalid_reward", param="reward")

    def give() -> str:
        check_values(reward.model_dump())
        completions = rows_of(server.ledger, rollout, MOST_ANSWER)
        if completions is None:
            completions = rows_of(server.ledger, rollout, requests=False) or []
        _check_known(server, rollout, completions)
        server.rollouts.reward(rollout, reward, sorted({row.policy for row in completions if row.policy is not None}))
        return to_json(_record(server, rollout, completions))

    return Response(await asyncio.to_thread(give), media_type="application/json")


@router.put("/{rollout}/trace", status_code=204)
async def put_trace(rollout: NewRolloutId, request: Request, server: ServerDep) -> None:
    """Takes what a client knows of a run that has ended (`RunTrace`): nodes, tool calls, rewards. The dashboard shows
    it. It is kept as long as the rollout, and another one takes its place. 410 once the rollout was deleted."""
    await asyncio.to_thread(_trace, server, rollout, await request.body())


@router.post("/traces")
async def add_traces(request: Request, server: ServerDep) -> TracesTaken:
    """The same of many runs (`RunTraces`), by id of the rollout. The answer names those that are not kept: deleted
    ones, those of other tokens, and those with a trace that is none."""
    traces = (await asyncio.to_thread(_read, RunTraces, await request.body())).traces
    ids = [rollout for rollout in traces if re.fullmatch(ROLLOUT_PATTERN, rollout)]
    refusals = await server.owners.refusals(request.scope, ids, begins=True)
    return await asyncio.to_thread(_traces, server, traces, refusals)


@router.delete("/{rollout}", status_code=204)
async def release(rollout: str, server: ServerDep, request: Request) -> None:
    """Ends a rollout's lease on its policy version, and forgets its turns and the records of its remote graphs. An
    unknown id is fine: its lease may have expired."""
    await release_all({rollout}, server, request)


@router.post("/release", status_code=204)
async def release_all(
    rollouts: Annotated[set[str], FailFast(), Body(max_length=MOST_ROWS)], server: ServerDep, request: Request
) -> None:
    """The same for many rollouts. None is released where one belongs to another token."""
    await server.owners.check(request.scope, rollouts, begins=False)
    ids = list(rollouts)
    for start in range(0, len(ids), _AT_ONCE):
        part = set(ids[start : start + _AT_ONCE])
        await server.leases.release(part)
        server.records.drop(part)
        server.gateway.forget(part)
        await asyncio.sleep(0)  # other requests go on


@router.post("/erase")
async def erase(body: Erase, server: ServerDep, request: Request) -> Erased:
    """Deletes rollouts and completions with all that is left of them: requests, answers, tokens, rewards, traces, and
    the files of ended jobs that used them. 409 while an open job needs one. Unknown ids are fine."""
    loose = f"; {len(body.completions)} completions" if body.completions else ""
    note(request.scope, target=f"{', '.join(body.rollouts)}{loose}")
    return await erase_runs(server, body)


class _Object(RootModel[dict[str, Any]]):
    """A JSON object."""


def _trace(server: Server, rollout: str, body: bytes) -> None:
    trace = _as_trace(_read(_Object, body).root)
    server.runs.trace(rollout, trace, _answer(trace))


def _traces(server: Server, traces: Mapping[str, dict[str, Any]], foreign: Mapping[str, str]) -> TracesTaken:
    """foreign: why rollouts of other tokens are refused."""
    runs, refusals = [], dict(foreign)
    for rollout, data in traces.items():
        if rollout in foreign:
            continue
        try:
            if re.fullmatch(ROLLOUT_PATTERN, rollout) is None:
                raise Unprocessable(f"{rollout!r:.100} is no id of a rollout", code="invalid_rollout", param="rollout")
            trace = _as_trace(data)
        except (APIError, Unprocessable) as error:
            refusals[rollout] = str(error)
        else:
            runs.append(ReportedRun(rollout, trace, _answer(trace)))
    deleted_ids = server.runs.traces(runs)
    return TracesTaken(taken=len(runs) - len(deleted_ids), deleted=deleted_ids, refused=refusals)


def _read(kind: type[M], body: bytes) -> M:
    """The record in a body. Raises Unprocessable for a body that has none."""
    try:
        return from_json(kind, body.decode())
    except ValidationError as error:
        raise _unprocessable(error) from None
    except ValueError as error:
        raise Unprocessable(f"a trace is a JSON object: {error}", code="invalid_trace", param="body") from None


def _as_trace(data: dict[str, Any]) -> RunTrace:
    """The trace in a JSON object. Raises APIError or Unprocessable for an object that is none."""
    check_values(data, halves=True, infinite=True)
    try:
        return RunTrace.model_validate(data, context=ARRIVAL)
    except ValidationError as error:
        raise _unprocessable(error) from None


def _unprocessable(error: ValidationError) -> Unprocessable:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return Unprocessable(f"{where or 'body'}: {first['msg']}", code="invalid_trace", param=where)


def _answer(trace: RunTrace) -> str:
    """What a run answered last."""
    answers = [call.message.get("content") for call in trace.completions if call.message]
    return str(next((text for text in reversed(answers) if text), ""))


def _record(server: Server, rollout: str, completions: Sequence[Completion]) -> RolloutRecord:
    spec = server.rollouts.spec(rollout) or RolloutSpec()
    return record_of(rollout, completions, spec, server.rollouts.rewards(rollout))


def _check_known(server: Server, rollout: str, completions: Sequence[Completion]) -> None:
    """Raises NotFound for a rollout that has no completions, and is not registered."""
    if not completions and server.rollouts.spec(rollout) is None and not server.rollouts.rewards(rollout):
        raise NotFound(
            f"there is no rollout {rollout!r:.100}: it is not registered, and no request had its id, or its "
            f"completions were archived or deleted. Send its requests to {rollout_path('ID')}/v1 of this server, "
            "or register it with PUT /api/rollouts/ID",
            code="not_found",
        )


records_router = APIRouter(prefix="/api/rollouts/{rollout}/records/{call}", tags=["rollouts"], route_class=RolloutRoute)
"""Records of remote graphs' runs, from their process to that of the rollout."""

Id = Annotated[str, Path(min_length=1, max_length=200)]
"""Of a rollout, a call or a run."""
MAX_WAIT = 30.0
"""Maximum number of seconds for which an answer is held back."""


@records_router.put("/{run}", status_code=204)
async def put_record(rollout: Id, call: Id, run: Id, request: Request, server: ServerDep) -> None:
    """Takes the record of a run that has ended, a JSON object. An empty body says that the run has begun."""
    body = await request.body()
    server.records.put(rollout, call, run, await asyncio.to_thread(_run_record, body) if body else None)


@records_router.get("")
async def get_records(
    rollout: str, call: str, server: ServerDep, wait: Annotated[float, Query(ge=0.0, le=MAX_WAIT)] = 0.0
) -> Response:
    """The records of the runs that answered a call: `{"ended": bool, "records": […]}`.

    Waits until all runs of the call have ended, for `wait` seconds at most. 404: no run has begun.
    """
    entry = await server.records.get(rollout, call, wait)
    if entry is None:
        raise NotFound(f"no process has recorded a run for call {call!r} of rollout {rollout!r}", code="not_found")
    records, is_complete = entry
    body = b'{"ended": %s, "records": [%s]}' % (b"true" if is_complete else b"false", b", ".join(records))
    return Response(body, media_type="application/json")


def _run_record(body: bytes) -> bytes:
    """A record in UTF-8, as strict JSON: it is answered together with others, which it must not spoil."""
    try:
        record = read_json(body, MOST_API_VALUES)
        if not isinstance(record, dict):
            raise APIError(400, "the body is no object")
        check_values(record, halves=True)
        return to_json(record).encode()
    except APIError as error:
        raise Unprocessable(f"a record is a JSON object: {error}", code="invalid_record", param="body") from None
