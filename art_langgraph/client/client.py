"""TrainerClient: the trainer server's control API."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from art_langgraph.client.demonstrations import Demonstration, sft_request
from art_langgraph.client.download import fetch
from art_langgraph.credit import RetryCredit, group_refs
from art_langgraph.trajectory import TrajectoryGroup
from trainer_server.wire import (
    Completion,
    ConfigError,
    Connection,
    ExportFormat,
    Fork,
    GroupRef,
    GRPOConfig,
    Job,
    JobFailed,
    JobList,
    JobStatus,
    Policy,
    PolicySpec,
    ServerError,
    ServerUnreachable,
    SFTConfig,
    StepRequest,
    StepResult,
    Version,
)

_WAIT = 20
"""Seconds of one long poll for a job."""
_GLANCE = 1.0
"""The same while a progress bar is shown."""
_RETRY_FOR = 60.0
"""Seconds for which a server that does not answer is asked again: it may be restarting."""


class TrainerClient:
    """Policies, steps, versions and completions of a trainer server. Use as `async with TrainerClient() as trainer:`.

    Address and key: arguments, else ART_BASE_URL / ART_API_KEY, else the local server's files.
    Methods raise ServerError (what the server refused, with its HTTP status) and ServerUnreachable.
    """

    def __init__(self, base_url: str | None = None, api_key: str | None = None) -> None:
        self.connection = Connection.find(base_url, api_key)
        self._http = httpx.AsyncClient(
            base_url=self.connection.url,
            headers={"Authorization": f"Bearer {self.connection.api_key}"},
            timeout=httpx.Timeout(60.0, connect=5.0),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def health(self) -> dict[str, Any]:
        """`{"ready", "trainer", "error"}`: whether completions can be answered now."""
        found: dict[str, Any] = (await self._ask("GET", "/health")).json()
        return found

    async def create_policy(self, name: str, **spec: Any) -> Policy:
        """Creates a policy (rank, alpha, targets, seed, temperature: see PolicySpec), or returns the existing one.

        Raises ServerError 409 when it exists with other values.
        """
        body = PolicySpec(name=name, **spec).model_dump(mode="json", exclude_unset=True)
        return Policy.model_validate_json((await self._ask("POST", "/api/policies", json=body, timeout=600)).content)

    async def fork(self, policy: str, version: int, name: str, *, optimizer: bool = True) -> Policy:
        """Creates the policy `name` from a version of another one: its version 0 is what that version is, and its
        training goes on from there, with that version's optimizer unless told otherwise.

        Sent again, it answers the same policy. Raises ServerError 409 when `name` exists as something else.
        """
        return await self.create_policy(name, fork_of=Fork(policy=policy, version=version, optimizer=optimizer))

    async def policies(self) -> list[Policy]:
        found = (await self._ask("GET", "/api/policies")).json()["policies"]
        return [Policy.model_validate(one) for one in found]

    async def policy(self, name: str) -> Policy:
        """One policy. Raises ServerError 404."""
        return Policy.model_validate_json((await self._ask("GET", f"/api/policies/{name}")).content)

    async def versions(self, policy: str) -> list[Version]:
        """Oldest first."""
        found = (await self._ask("GET", f"/api/policies/{policy}/versions")).json()["versions"]
        return [Version.model_validate(one) for one in found]

    async def delete_version(self, policy: str, version: int) -> None:
        """Raises ServerError 409 for the newest version and for one in use."""
        await self._ask("DELETE", f"/api/policies/{policy}/versions/{version}")

    async def score_version(self, policy: str, version: int, score: float) -> None:
        """Notes how good a version is, by an evaluation of your own. A server with `--keep-versions` never deletes the
        best one; before any is scored, that is the one whose rollouts had the highest mean reward."""
        await self._ask("PUT", f"/api/policies/{policy}/versions/{version}/score", json={"score": score})

    async def completion(self, completion_id: str) -> Completion:
        """What the ledger knows about a completion: exact tokens, log-probabilities, version."""
        return Completion.model_validate_json((await self._ask("GET", f"/api/completions/{completion_id}")).content)

    async def submit(
        self,
        policy: str,
        groups: Sequence[TrajectoryGroup | GroupRef],
        config: GRPOConfig | None = None,
        *,
        nodes: Sequence[str] | None = None,
        retry_credit: RetryCredit = "drop",
        idempotency_key: str | None = None,
    ) -> Job:
        """Queues one training step. Sent again with the same key, it answers the same job. Others: see `train`."""
        refs = [group for group in groups if isinstance(group, GroupRef)]
        whole = [group for group in groups if isinstance(group, TrajectoryGroup)]
        request = StepRequest(
            groups=[*refs, *group_refs(whole, policy=policy, nodes=nodes, retry_credit=retry_credit)],
            config=config or GRPOConfig(),
            idempotency_key=idempotency_key or uuid.uuid4().hex,
        )
        return Job.model_validate_json(
            (await self._ask("POST", f"/api/policies/{policy}/steps", json=request.model_dump(mode="json"))).content
        )

    async def find_step(self, policy: str, idempotency_key: str) -> Job | None:
        """The job that was accepted under a key, or None: after a crash, whether a step needs to be sent at all."""
        try:
            found = await self._ask("GET", f"/api/policies/{policy}/steps", params={"idempotency_key": idempotency_key})
        except ServerError as error:
            if error.status == 404:
                return None
            raise
        return Job.model_validate_json(found.content)

    async def job(self, job_id: str, *, wait: float = 0.0) -> Job:
        """A job as it stands, or as soon as it is final, waiting at most `wait` seconds (≤ 60)."""
        found = await self._ask("GET", f"/api/jobs/{job_id}", params={"wait": wait}, timeout=wait + 30)
        return Job.model_validate_json(found.content)

    async def jobs(self, *, limit: int = 100, status: JobStatus | None = None) -> list[Job]:
        """Jobs of all policies, newest first.

        Args:
            limit: How many at most, up to 1000.
            status: Only jobs with this status; None: all.
        """
        params: dict[str, str | int] = {"limit": limit, **({"status": status.value} if status else {})}
        return JobList.model_validate_json((await self._ask("GET", "/api/jobs", params=params)).content).jobs

    async def cancel(self, job_id: str) -> Job:
        """Cancels a queued job; cancelling it again answers the same.

        Returns:
            The cancelled job.

        Raises:
            ServerError: 404 where there is no such job, 409 where the trainer has taken it up or it has ended.
        """
        return Job.model_validate_json((await self._ask("POST", f"/api/jobs/{job_id}/cancel")).content)

    async def wait(self, job: Job, *, progress: str | None = None) -> Job:
        """Waits until a job is final. progress: label of a bar on the terminal; None: no bar. Raises JobFailed."""
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, transient=True, disable=progress is None) as bar:
            task = bar.add_task(progress or "", total=1.0)
            while not job.status.final:
                job = await self.job(job.id, wait=_GLANCE if progress else _WAIT)
                bar.update(task, completed=job.progress or 0.0)
        if job.status in (JobStatus.failed, JobStatus.cancelled):
            how = "failed" if job.status == JobStatus.failed else "was cancelled"
            raise JobFailed(f"{job.id} on policy {job.policy!r} {how}: {job.error}", job_id=job.id)
        return job

    async def train(
        self,
        policy: str,
        groups: Sequence[TrajectoryGroup | GroupRef],
        config: GRPOConfig | None = None,
        *,
        nodes: Sequence[str] | None = None,
        retry_credit: RetryCredit = "drop",
        idempotency_key: str | None = None,
    ) -> StepResult:
        """One training step on the policy's own completions: returns when the gateway serves the new version.

        nodes: patterns of the node paths to train ("planner", "worker/*"); None: all. retry_credit: see `credit`.
        When there was nothing to learn from, the version stays and `metrics["skipped"]` says why. `metrics["job"]`
        has the job's id and its seconds by phase. Raises JobFailed.
        """
        job = await self.submit(
            policy, groups, config, nodes=nodes, retry_credit=retry_credit, idempotency_key=idempotency_key
        )
        return await self.result(job)

    async def sft(
        self,
        policy: str,
        demonstrations: str | Path | Iterable[Demonstration],
        config: SFTConfig | None = None,
        *,
        nodes: Sequence[str] | None = None,
        idempotency_key: str | None = None,
        progress: bool = True,
    ) -> StepResult:
        """Warm start: the next version of a policy imitates demonstrations, by supervised fine-tuning.

        demonstrations: a JSONL file in OpenAI's fine-tuning format (`{"messages": […], "tools": […]}` a line),
        conversations of that form, or trajectories; of those, the completions with the very tokens that were sampled,
        where `config.min_reward` is set only of runs with at least that reward. nodes: patterns of the node paths whose
        completions are taken. Only what assistants said is learnt. Returns and raises as `train`, and ConfigError for
        what is no conversation.
        """
        request = sft_request(demonstrations, config, nodes=nodes, idempotency_key=idempotency_key or uuid.uuid4().hex)
        answer = await self._ask("POST", f"/api/policies/{policy}/sft", json=request.model_dump(mode="json"))
        label = f"warm start of {policy}" if progress else None
        return await self.result(Job.model_validate_json(answer.content), progress=label)

    async def result(self, job: Job, *, progress: str | None = None) -> StepResult:
        """Waits for a submitted step or warm start; as `train`. progress: as that of `wait`."""
        job = await self.wait(job, progress=progress)
        assert job.result is not None
        job.result.metrics["job"] = {"id": job.id, "seconds": job.seconds}
        return job.result

    async def export(
        self,
        policy: str,
        version: int,
        directory: str | Path,
        format: ExportFormat = "peft",
        *,
        force: bool = False,
        progress: bool = False,
    ) -> Path:
        """Writes a version into a directory, with a model card. The directory gets all the files or none.

        Merging takes the server seconds to minutes, and the base model's size in memory and on disk.

        Args:
            policy: Name of the policy.
            version: Its version.
            directory: Where to write; made if it is missing.
            format: `peft`: the adapter in PEFT's format. `merged`: merged into the base model, for transformers and
                vLLM. `gguf`: the same as one file for llama.cpp.
            force: Write into a directory that has files already; files of the same names are replaced.
            progress: Show a bar on the terminal.

        Returns:
            The directory.

        Raises:
            ConfigError: The directory has files already, or cannot be written.
            ServerError: 404 where there is no such version, 422 for what a format cannot hold.
        """
        directory = Path(directory)
        if not force and directory.is_dir() and any(directory.iterdir()):
            raise ConfigError(
                f"{directory} is not empty: give another directory, or force=True (`--force`) to write into it"
            )
        path = f"/api/policies/{policy}/versions/{version}/export"
        return await fetch(self._http, path, {"format": format}, directory, refused=_error, progress=progress)

    async def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request. Asking again is safe: steps carry a key, everything else is idempotent."""
        deadline = time.monotonic() + _RETRY_FOR
        delay = 0.1
        while True:
            try:
                answer = await self._http.request(method, path, **options)
            except httpx.TransportError as error:
                if (isinstance(error, httpx.ConnectError) and delay > 0.5) or time.monotonic() > deadline:
                    raise ServerUnreachable(
                        f"no trainer server answers at {self.connection.url} ({type(error).__name__}). "
                        "Start one with `art-langgraph serve`, or set ART_BASE_URL and ART_API_KEY."
                    ) from error
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)
                continue
            if answer.is_success:
                return answer
            raise _error(answer)


def _error(answer: httpx.Response) -> ServerError:
    try:
        found = answer.json()["error"]
        message, code = str(found["message"]), found.get("code")
    except (ValueError, KeyError, TypeError):
        message, code = answer.text[:500], None
    return ServerError(f"{message} (HTTP {answer.status_code})", status=answer.status_code, code=code)
