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
from pydantic import ValidationError
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from art_langgraph.client.demonstrations import Demonstration, sft_request
from art_langgraph.client.download import fetch
from art_langgraph.credit import RetryCredit, group_refs
from art_langgraph.jsonl import explain
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

        What is left out takes its default, or in a fork the value of the source. An existing policy must have the same
        values.

        Args:
            name: Letters, digits, `.`, `_` and `-`; not the base model's name.
            rank: LoRA rank: 1, 8, 16, 32, 64, 128 or 256 (default 8).
            alpha: LoRA scale; the adapter adds (alpha / rank)·B·A (default 16).
            targets: Names of the linear layers that get an adapter (default: all of attention and MLP).
            seed: Seeds the initial A matrices; B starts at 0 (default 0).
            temperature: Sampling temperature for clients that send none in a header, over what a graph hard-codes.
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
        """Creates a policy whose version 0 is a version of another one. Sent again, it answers the same policy.

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
        """Queues one training step and returns at once. Sent again with the same key, it answers the same job.

        Args:
            policy: The policy to train.
            groups: As those of `train_step`.
            config: As that of `train_step`.
            nodes: As those of `train_step`.
            retry_credit: As that of `train_step`.
            idempotency_key: Names the step, so that it is taken once however often it is sent; None: a new name.
        """
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

    async def train_step(
        self,
        policy: str,
        groups: Sequence[TrajectoryGroup | GroupRef],
        config: GRPOConfig | None = None,
        *,
        nodes: Sequence[str] | None = None,
        retry_credit: RetryCredit = "drop",
        idempotency_key: str | None = None,
    ) -> StepResult:
        """Takes one training step on the policy's own completions.

        It returns when the gateway serves the new version.

        Args:
            policy: The policy to train.
            groups: Runs to be compared with one another: those of `gather`, or references to completions.
            config: Learning rate, loss and all else of a step; None: the defaults.
            nodes: Patterns of the node paths to train ("planner", "worker/*"); None: all.
            retry_credit: Whether attempts of a node before an error retry are trained ("train") or left out ("drop").
            idempotency_key: As that of `submit`.

        Returns:
            The new version and the step's metrics. When there was nothing to learn from, the version stays and
            `metrics["skipped"]` says why. `metrics["job"]` has the job's id and its seconds by phase.

        Raises:
            JobFailed: The step failed; the policy stays at the version it had.
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

        Only what assistants said is learnt.

        Args:
            policy: The policy to train.
            demonstrations: A JSONL file in OpenAI's fine-tuning format (`{"messages": […], "tools": […]}` a line),
                conversations of that form, or trajectories. Of trajectories it takes the very tokens that were sampled.
            config: Learning rate, epochs and all else; with `min_reward`, only runs with at least that reward count.
            nodes: Patterns of the node paths whose completions are imitated; None: all.
            idempotency_key: As that of `submit`.
            progress: Shows a bar on a terminal.

        Returns:
            As `train_step`.

        Raises:
            ConfigError: A demonstration is no conversation, or there are none.
            JobFailed: The warm start failed; the policy stays at the version it had.
        """
        request = sft_request(demonstrations, config, nodes=nodes, idempotency_key=idempotency_key or uuid.uuid4().hex)
        answer = await self._ask("POST", f"/api/policies/{policy}/sft", json=request.model_dump(mode="json"))
        label = f"warm start of {policy}" if progress else None
        return await self.result(Job.model_validate_json(answer.content), progress=label)

    async def result(self, job: Job, *, progress: str | None = None) -> StepResult:
        """Waits for a submitted step or warm start. Returns and raises as `train_step`; progress: as that of `wait`."""
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
