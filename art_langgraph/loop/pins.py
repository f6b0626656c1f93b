"""Whether the version and the temperature that a rollout asked for are those that answered it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import httpx

from art_langgraph.capture.scope import Scope
from art_langgraph.client.outages import retry_seconds
from art_langgraph.client.servers import known_servers
from art_langgraph.client.transport import PatientAsyncClient
from art_langgraph.loop.failures import RolloutsFailed
from art_langgraph.notices import warn_once
from art_langgraph.trajectory import CompletionCall, Trajectory
from trainer_server.common.jsonl import from_json
from trainer_server.wire import Completion, RolloutCalls, names_version
from trainer_server.wire.completions import effective_temperature
from trainer_server.wire.rollouts import rollout_api_path

_REMEDY = (
    "Let the graph ask the policy by ChatART, or by LangChain's ChatOpenAI with the trainer server's address and key, "
    "and a function by a client with current_run().base_url"
)
_REMOTE_REMEDY = (
    "Record the remote process by art_langgraph.dev or install(), with the address and key of the same trainer server, "
    "or pass temperature=None and no version"
)
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)


class PinIgnored(RolloutsFailed):
    """A run was answered by another version, or at another temperature, than `version=` and `temperature=` say."""


async def find_ignored_pin(scope: Scope, trajectory: Trajectory, *, remote: bool) -> str | None:
    """Why the answers of a run do not count as what was asked for; None where they do.

    A graph that names a version itself (`agent@3`) keeps it.

    Args:
        scope: The rollout, which has ended.
        trajectory: Its record.
        remote: Whether another process ran the graph.
    """
    if scope.temperature is None and not _fixes_versions(scope):
        return None
    if remote:
        return await _ignored_remotely(scope)
    answers = [
        call for call in trajectory.completions if call.id is not None and call.error is None and not call.cached
    ]
    mark_missing = scope.temperature is not None and not _all_marked(scope, trajectory, answers)
    for call in answers:
        version = (
            None if names_version(str(call.model)) or call.version is None else _requested_version(scope, call.policy)
        )
        other = version is not None and version != call.version
        if not other and not mark_missing:
            continue
        row = await _completion(str(call.id))
        if row is not None and row.rollout not in (None, scope.rollout_id):
            continue  # a rollout inside this one
        if other:
            return f"version={scope.version!r} was asked for, and {call.policy}@{call.version} answered. {_REMEDY}"
        if row is not None and row.sampling.temperature != _temperature(scope):
            return (
                f"temperature={scope.temperature} was asked for, and {call.model} answered at "
                f"{row.sampling.temperature}. {_REMEDY}"
            )
    return None


def check_version_asked(runs: Sequence[Trajectory], version: object) -> None:
    """Raises PinIgnored when a version was asked for, and no run got any answer of the trainer server."""
    if version is None or not runs or any(call.id is not None for run in runs for call in run.completions):
        return
    raise PinIgnored(
        f"version={version!r} was not asked for: the trainer server answered in none of {len(runs)} runs. {_REMEDY}",
        trajectories=runs,
    )


def _fixes_versions(scope: Scope) -> bool:
    """Whether a rollout asks for a version by its number. The newest one is what it is when the rollout begins."""
    versions = scope.version.values() if isinstance(scope.version, Mapping) else [scope.version]
    return any(isinstance(version, int) for version in versions)


def _requested_version(scope: Scope, policy: str | None) -> int | None:
    """The version that a rollout asks of a policy, by its number; None: any."""
    version = scope.version.get(policy or "") if isinstance(scope.version, Mapping) else scope.version
    return version if isinstance(version, int) else None


def _temperature(scope: Scope) -> float | None:
    """The temperature of a rollout's answers, where it asked for one."""
    return None if scope.temperature is None else effective_temperature(scope.temperature)


def _all_marked(scope: Scope, trajectory: Trajectory, answers: Sequence[CompletionCall]) -> bool:
    """Whether every request that was answered said that it belongs to the rollout.

    A call that failed may or may not have said so: each counts against those that did.
    """
    failures = sum(call.error is not None for call in trajectory.completions)
    requests = {str(call.id).partition(".")[0] for call in answers}  # choices of one answer: `<id>`, `<id>.1`, …
    return scope.mark_count - failures >= len(requests)


async def _completion(completion_id: str) -> Completion | None:
    """A row of the ledger of any server that this process knows; None where none has it."""
    async for answer in _answers(f"/api/completions/{completion_id}"):
        return from_json(Completion, answer.decode())
    warn_once(
        "the version or temperature of a rollout could not be checked: no trainer server that this process knows has "
        "its answers",
        "Set ART_BASE_URL and ART_API_KEY to those of the server that the graph asks",
    )
    return None


async def _ignored_remotely(scope: Scope) -> str | None:
    calls = RolloutCalls()
    async for answer in _answers(f"{rollout_api_path(scope.rollout_id)}?messages=false"):
        if (calls := RolloutCalls.model_validate_json(answer)).calls:
            break
    pins = {"version": scope.version, "temperature": scope.temperature}
    texts = [f"{name}={value!r}" for name, value in pins.items() if value is not None]
    request = f"the rollout asked for {' and '.join(texts)}"
    if not calls.calls:
        return (
            f"{request}, and the trainer server got no request of the rollout from the remote graph. {_REMOTE_REMEDY}"
        )
    for policy, versions in calls.versions.items():
        if (version := _requested_version(scope, policy)) is not None and version not in versions:
            return f"{request}, and the remote graph asked for versions {versions} of {policy!r}"
    if scope.temperature is not None and calls.temperatures != [_temperature(scope)]:
        return f"{request}, and the remote graph's calls had temperatures {calls.temperatures}"
    return None


async def _answers(path: str) -> AsyncIterator[bytes]:
    """What the servers that this process knows answer to a GET request. Only the first of them is waited for."""
    for number, server in enumerate(known_servers()):
        headers = {"Authorization": f"Bearer {server.api_key}"}
        async with PatientAsyncClient(0 if number else retry_seconds(), headers=headers, timeout=_TIMEOUT) as http:
            try:
                answer = await http.get(f"{server.url}{path}")
            except httpx.TransportError:
                continue
        if answer.is_success:
            yield answer.content
