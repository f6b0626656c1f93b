"""TrainerClient: the trainer server's control API."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from pydantic import ValidationError
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from art_langgraph.client.demonstrations import Demonstration, sft_request
from art_langgraph.client.download import fetch
from art_langgraph.client.outages import explain as explain_error
from art_langgraph.client.outages import retry_seconds
from art_langgraph.client.servers import meet
from art_langgraph.client.transport import PatientAsyncClient
from art_langgraph.credit import RetryCredit, group_refs, repeated
from art_langgraph.progress import progress_bar
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
from trainer_server.wire.jsonl import explain, to_json
from trainer_server.wire.text import beginning

log = logging.getLogger("art_langgraph")

_JSON = {"Content-Type": "application/json"}
"""For what `to_json` writes: httpx's own `json=` fails on half surrogate pairs."""
_WAIT = 20
"""Seconds of a long poll for a job."""
_GLANCE = 1.0
"""Seconds of a long poll while a progress bar is shown."""


class TrainerClient:
    """Policies, steps, versions and completions of a trainer server. Use as `async with TrainerClient() as trainer:`.

    All methods that send a request raise ServerError when the server refuses it (with its HTTP status), and
    ServerUnreachable when the server does not answer. While the server is gone, as during a restart, they ask again for
    `retry_for` seconds, and a warning says so. That is safe: steps carry an idempotency key, and all other requests are
    idempotent.

    Args:
        base_url: Address of the server; None: ART_BASE_URL, else the local server's file.
        api_key: Its key; None: ART_API_KEY, else the local server's file.
        retry_for: Seconds for which requests are repeated while no server answers; 0: not at all. None: ART_RETRY_FOR,
            else 120.

    Raises:
        ConfigError: There is no key, or `retry_for` is negative.
    """

    def __init__(
        self, base_url: str | None = None, api_key: str | None = None, *, retry_for: float | None = None
    ) -> None:
        self.connection = Connection.find(base_url, api_key)
        self.retry_for = retry_seconds(retry_for)
        meet(self.connection)
        self._http = PatientAsyncClient(
            self.retry_for,
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
        """`{"ready", "engines", "trainer", "error"}`: whether completions can be answered now, and by which engines;
        whether the trainer runs; what has failed."""
        health: dict[str, Any] = (await self._ask("GET", "/health")).json()
        return health

    async def create_policy(
        self,
        name: str,
        *,
        rank: int | None = None,
        alpha: float | None = None,
        targets: Sequence[str] | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        fork_of: Fork | None = None,
    ) -> Policy:
        """Creates a policy, a LoRA on the server's base model, or returns the existing one of that name.

        A value that is None takes its default, or in a fork the value of the source. An existing policy must have the
        same values.

        Args:
            name: Letters, digits, `.`, `_` and `-`; not the base model's name.
            rank: LoRA rank: 1, 8, 16, 32, 64, 128 or 256 (default 8).
            alpha: LoRA scale; the adapter adds (alpha / rank)·B·A (default 16).
            targets: Names of the linear layers that get an adapter (default: all of attention and MLP).
            seed: Seeds the initial A matrices; B starts at 0 (default 0).
            temperature: Sampling temperature of requests without a temperature header. It overrides what a graph
                hard-codes.
            fork_of: Start from a version of another policy, whose rank, alpha, targets and seed it takes; see `fork`.

        Raises:
            ConfigError: A value is out of its range.
            ServerError: 409 when the policy exists with other values.
        """
        given = {
            "rank": rank,
            "alpha": alpha,
            "targets": targets,
            "seed": seed,
            "temperature": temperature,
            "fork_of": fork_of,
        }
        try:
            spec = PolicySpec(name=name, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]
        except ValidationError as error:
            raise ConfigError(f"create_policy({name!r}): {explain(error)}") from None
        body = spec.model_dump(mode="json", exclude_unset=True)
        return Policy.model_validate_json((await self._ask("POST", "/api/policies", json=body, timeout=600)).content)

    async def fork(self, policy: str, version: int, name: str, *, optimizer: bool = True) -> Policy:
        """Creates a policy whose version 0 is a version of another policy. Calling it again returns the same policy.

        Args:
            policy: The policy to start from.
            version: Its version.
            name: The policy to create.
            optimizer: Whether its training goes on with that version's optimizer state.

        Raises:
            ServerError: 409 when `name` exists as something else.
        """
        return await self.create_policy(name, fork_of=Fork(policy=policy, version=version, optimizer=optimizer))

    async def policies(self) -> list[Policy]:
        """All policies of the server."""
        records = (await self._ask("GET", "/api/policies")).json()["policies"]
        return [Policy.model_validate(record) for record in records]

    async def policy(self, name: str) -> Policy:
        """A policy by its name. Raises ServerError 404 where there is none."""
        return Policy.model_validate_json((await self._ask("GET", f"/api/policies/{name}")).content)

    async def versions(self, policy: str) -> list[Version]:
        """Versions of a policy, oldest first. Raises ServerError 404 where there is no such policy."""
        records = (await self._ask("GET", f"/api/policies/{policy}/versions")).json()["versions"]
        return [Version.model_validate(record) for record in records]

    async def delete_version(self, policy: str, version: int) -> None:
        """Deletes a version. Raises ServerError 409 for the newest version and for a version in use."""
        await self._ask("DELETE", f"/api/policies/{policy}/versions/{version}")

    async def score_version(self, policy: str, version: int, score: float) -> None:
        """Records how good a version is, by an evaluation of your own.

        A server with `--keep-versions` never deletes the best version. While no version has a score, the best version
        is that whose rollouts had the highest mean reward.

        Args:
            policy: Name of the policy.
            version: Its version.
            score: Larger is better.

        Raises:
            ConfigError: The score is not finite.
        """
        if not math.isfinite(score):
            raise ConfigError(
                f"score={score} of {policy}@{version} is not finite: versions are compared by their scores"
            )
        await self._ask("PUT", f"/api/policies/{policy}/versions/{version}/score", json={"score": score})

    async def completion(self, completion_id: str) -> Completion:
        """The ledger's record of a completion: exact tokens, log-probabilities, version."""
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
        time_limit: float | None = None,
    ) -> Job:
        """Queues a training step and returns at once. Calling it again with the same key returns the same job.

        Args:
            policy: The policy to train.
            groups: As those of `train_step`.
            config: As that of `train_step`.
            nodes: As those of `train_step`.
            retry_credit: As that of `train_step`.
            idempotency_key: Names the step. The server takes a step once, however often it is sent. None: a new key.
            time_limit: Seconds that the trainer may take; a job that takes longer fails. None: the server's limit.

        Raises:
            ConfigError: As `train_step`.
        """
        request = StepRequest(
            groups=_references(policy, groups, nodes, retry_credit),
            config=config or GRPOConfig(),
            idempotency_key=idempotency_key or uuid.uuid4().hex,
            time_limit=time_limit,
        )
        return Job.model_validate_json(
            (await self._ask("POST", f"/api/policies/{policy}/steps", content=to_json(request), headers=_JSON)).content
        )

    async def find_step(self, policy: str, idempotency_key: str) -> Job | None:
        """The job of a step that the server has accepted: after a crash, tells whether the step must be sent again.

        Args:
            policy: Name of the policy.
            idempotency_key: The key that the step was sent with.

        Returns:
            The job; None where no step was accepted under this key.
        """
        try:
            params = {"idempotency_key": idempotency_key}
            answer = await self._ask("GET", f"/api/policies/{policy}/steps", params=params)
        except ServerError as error:
            if error.status == 404:
                return None
            raise
        return Job.model_validate_json(answer.content)

    async def job(self, job_id: str, *, wait: float = 0.0) -> Job:
        """A job by its id.

        Args:
            job_id: Id of the job.
            wait: Seconds to wait for the job to end, 60 at most; 0 returns its present state at once.
        """
        answer = await self._ask("GET", f"/api/jobs/{job_id}", params={"wait": wait}, timeout=wait + 30)
        return Job.model_validate_json(answer.content)

    async def jobs(self, *, limit: int = 100, status: JobStatus | None = None) -> list[Job]:
        """Jobs of all policies, newest first.

        Args:
            limit: How many at most, up to 1000.
            status: Only jobs with this status; None: all.
        """
        params: dict[str, str | int] = {"limit": limit, **({"status": status.value} if status else {})}
        return JobList.model_validate_json((await self._ask("GET", "/api/jobs", params=params)).content).jobs

    async def cancel(self, job_id: str) -> Job:
        """Cancels a queued or running step or warm start. Cancelling it again returns the same job.

        The policy stays at the version that it had. To break off a running job, the server ends the trainer and starts
        it again.

        Returns:
            The cancelled job.

        Raises:
            ServerError: 404 where there is no such job, 409 where it has ended or made its version.
        """
        return Job.model_validate_json((await self._ask("POST", f"/api/jobs/{job_id}/cancel")).content)

    async def wait(self, job: Job, *, progress: str | None = None, timeout: float | None = None) -> Job:
        """Waits until a job has ended. When the waiting is cancelled, the job goes on at the server; a warning says so.

        Args:
            job: The job.
            progress: Label of a progress bar on the terminal; None: no bar.
            timeout: Seconds to wait; None: as long as the job takes.

        Returns:
            The job in its final state.

        Raises:
            JobFailed: The job failed or was cancelled.
            TimeoutError: The job has not ended in time. It goes on: wait for it again, or cancel it.
        """
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with progress_bar(*columns, shown=progress is not None) as bar:
            task = bar.add_task(progress or "", total=1.0)
            try:
                async with asyncio.timeout(timeout):
                    while not job.status.final:
                        job = await self.job(job.id, wait=_GLANCE if progress else _WAIT)
                        bar.update(task, completed=job.progress or 0.0)
            except TimeoutError:
                raise TimeoutError(
                    f"{job.id} on policy {job.policy!r} is {job.status.value} after {timeout:g} s and goes on: wait "
                    f"for it by TrainerClient.result, or cancel it: `art-langgraph jobs cancel {job.id}`"
                ) from None
            except asyncio.CancelledError:  # Ctrl-C, or the caller's timeout
                log.warning(
                    "nobody waits for %s any more; it goes on at the server: `art-langgraph jobs list` shows it, "
                    "`art-langgraph jobs cancel %s` cancels it",
                    job.id,
                    job.id,
                )
                raise
        if job.status in (JobStatus.failed, JobStatus.cancelled):
            how = "failed" if job.status == JobStatus.failed else "was cancelled"
            raise JobFailed(f"{job.id} on policy {job.policy!r} {how}: {job.error}", job_id=job.id)
        return job

    async def train_step(
        self,
        policy: str,
        groups: Sequence[TrajectoryGroup | GroupRef],
        config: GRPOConfig | None = None,
        *,
        nodes: Sequence[str] | None = None,
        retry_credit: RetryCredit = "drop",
        idempotency_key: str | None = None,
        time_limit: float | None = None,
        timeout: float | None = None,
    ) -> StepResult:
        """Takes a training step on the policy's own completions. Returns when the gateway serves the new version.

        Args:
            policy: The policy to train.
            groups: Runs to compare: groups of `gather`, or references to completions.
            config: Learning rate, loss and other settings of the step; None: the defaults.
            nodes: Patterns of the node paths to train ("planner", "worker/*"); None: all.
            retry_credit: Whether attempts of a node before an error retry are trained ("train") or left out ("drop").
            idempotency_key: As that of `submit`.
            time_limit: As that of `submit`.
            timeout: As that of `wait`.

        Returns:
            The new version, the step's metrics, and in `trajectories` the ids of those that were trained, as `groups`
            names them. When there was nothing to learn from, the version stays and `metrics["skipped"]` says why.
            `metrics["job"]` has the job's id and its seconds by phase.

        Raises:
            ConfigError: An element of `groups` is no group; or `nodes` or `retry_credit` is given with a `GroupRef`,
                whose completions do not say where they were made.
            JobFailed: The step failed or was cancelled; the policy stays at the version it had.
            TimeoutError: As `wait`.
        """
        job = await self.submit(
            policy,
            groups,
            config,
            nodes=nodes,
            retry_credit=retry_credit,
            idempotency_key=idempotency_key,
            time_limit=time_limit,
        )
        return await self.result(job, timeout=timeout)

    async def sft(
        self,
        policy: str,
        demonstrations: str | Path | Iterable[Demonstration],
        config: SFTConfig | None = None,
        *,
        nodes: Sequence[str] | None = None,
        idempotency_key: str | None = None,
        time_limit: float | None = None,
        progress: bool = True,
        timeout: float | None = None,
    ) -> StepResult:
        """Warm start: the next version of a policy imitates demonstrations, by supervised fine-tuning.

        Only the assistants' messages are trained.

        Args:
            policy: The policy to train.
            demonstrations: A JSONL file in OpenAI's fine-tuning format (`{"messages": […], "tools": […]}` a line),
                conversations of that form, or trajectories. For trajectories, the sampled tokens are trained.
            config: Learning rate, epochs and other settings. With `min_reward`, only runs with at least that reward
                are used.
            nodes: Patterns of the node paths whose completions are imitated; None: all.
            idempotency_key: As that of `submit`.
            time_limit: As that of `submit`.
            progress: Shows a bar on a terminal.
            timeout: As that of `wait`.

        Returns:
            As `train_step`.

        Raises:
            ConfigError: A demonstration is no conversation, or there are none, or `nodes` is given with
                conversations.
            JobFailed: The warm start failed; the policy stays at the version it had.
            TimeoutError: As `wait`.
        """
        request = sft_request(demonstrations, config, nodes=nodes, idempotency_key=idempotency_key or uuid.uuid4().hex)
        request.time_limit = time_limit
        answer = await self._ask("POST", f"/api/policies/{policy}/sft", content=to_json(request), headers=_JSON)
        label = f"warm start of {policy}" if progress else None
        return await self.result(Job.model_validate_json(answer.content), progress=label, timeout=timeout)

    async def result(self, job: Job, *, progress: str | None = None, timeout: float | None = None) -> StepResult:
        """Waits for a submitted step or warm start.

        Args:
            job: The job.
            progress: As that of `wait`.
            timeout: As that of `wait`.

        Returns:
            As `train_step`.

        Raises:
            JobFailed: The step failed; the policy stays at the version it had.
            TimeoutError: As `wait`.
        """
        job = await self.wait(job, progress=progress, timeout=timeout)
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
            force: Write into a directory that has files already. Files of the same names are replaced, and those of
                an export in another format are removed.
            progress: Show a bar on the terminal.

        Returns:
            The directory.

        Raises:
            ConfigError: The directory has files already, or cannot be written, or a folder has the name of a file.
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
        """Sends a request. Raises ServerError and ServerUnreachable, as the class says."""
        try:
            answer = await self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise ServerUnreachable(
                f"no trainer server answers at {self.connection.url} ({explain_error(error)}). "
                "Start one with `art-langgraph serve`, or set ART_BASE_URL and ART_API_KEY."
            ) from error
        if answer.is_success:
            return answer
        raise _error(answer)


def _references(
    policy: str, groups: Sequence[TrajectoryGroup | GroupRef], nodes: Sequence[str] | None, retry_credit: RetryCredit
) -> list[GroupRef]:
    """The groups of a step, as completions and rewards. Raises ConfigError as `train_step`."""
    for number, group in enumerate(groups):
        if not isinstance(group, TrajectoryGroup | GroupRef):
            raise ConfigError(
                f"group {number} (counted from 0) is of type {type(group).__name__}: a step compares runs, so it takes "
                "TrajectoryGroup(scenario=…, trajectories=[…]) or GroupRef"
            )
        if isinstance(group, GroupRef) and (nodes is not None or retry_credit != "drop"):
            raise ConfigError(
                f"group {number} (counted from 0) is a GroupRef, which does not say in which node a completion was "
                "made: leave out nodes= and retry_credit=, or pass a TrajectoryGroup"
            )
    refs = [group for group in groups if isinstance(group, GroupRef)]
    whole = [group for group in groups if isinstance(group, TrajectoryGroup)]
    if mixed := [group.scenario.id for group in whole if len(group.judgements) > 1]:
        log.warning(
            "%d groups have rewards of several judgements, or of a judge beside others, which are compared apart: "
            "score all runs of a group together; the first: %s",
            len(mixed),
            mixed[0],
        )
    refs += group_refs(whole, policy=policy, nodes=nodes, retry_credit=retry_credit)
    if twice := repeated(refs):
        log.warning(
            "%d completions are in several references of one step, which trains them once for each; the first: %s",
            len(twice),
            twice[0],
        )
    return refs


def _error(answer: httpx.Response) -> ServerError:
    try:
        problem = answer.json()["error"]
        message, code = str(problem["message"]), problem.get("code")
    except (ValueError, KeyError, TypeError):
        message, code = beginning(answer.text, 500), None
    return ServerError(f"{message} (HTTP {answer.status_code})", status=answer.status_code, code=code)
