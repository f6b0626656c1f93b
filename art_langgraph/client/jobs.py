"""Training steps and warm starts. A part of TrainerClient."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from art_langgraph.client.api import ServerAPI
from art_langgraph.client.demonstrations import Demonstrations, SFTOptions, check_keywords, sft_request
from art_langgraph.credit import Advantage, RetryCredit, check_advantages, find_repeats, group_refs
from art_langgraph.progress import losses, progress_bar
from art_langgraph.trajectory import TrajectoryGroup, traces_of
from trainer_server.common import tracing
from trainer_server.wire import (
    ConfigError,
    GroupRef,
    GRPOConfig,
    Job,
    JobFailed,
    JobList,
    JobStatus,
    ServerError,
    SFTConfig,
    StepRequest,
    StepResult,
)

log = logging.getLogger("art_langgraph")

_WAIT = 20
"""Seconds of a long poll for a job."""
_POLL_INTERVAL = 1.0
"""Seconds of a long poll while a progress bar is shown."""


class StepOptions(TypedDict, total=False):
    """Keywords of `TrainerClient.submit` and `TrainerClient.train_step`, besides policy, groups and config.

    Attributes:
        nodes: Patterns of the node paths to train ("planner", "worker/*"); None: all.
        retry_credit: Whether attempts of a node before an error retry are trained ("train") or left out ("drop").
        hints: By id of a trajectory: what the policy would have needed to know. The policy that reads it in its
            prompts is then the teacher of this run; the weight is that of `config.distill`.
        advantages: By id of a trajectory: its advantage, in place of the one that the rewards give. A number, or
            numbers by pattern of nodes or id of a completion. Each run with a reward needs one. None: the rewards
            count.
        from_version: The version that the step goes on from; None: the newest. The new version is the newest in any
            case.
        idempotency_key: Name of the step, which the server takes once, however often it is sent. None: a new key.
        time_limit: Seconds that the trainer may take; a step that takes longer fails. None: the server's limit.
    """

    nodes: Sequence[str] | None
    retry_credit: RetryCredit
    hints: Mapping[str, str] | None
    advantages: Mapping[str, Advantage] | None
    from_version: int | None
    idempotency_key: str | None
    time_limit: float | None


class JobAPI(ServerAPI):
    """The methods of `TrainerClient` for steps and warm starts: they are queued, waited for, listed and cancelled."""

    async def submit(
        self,
        policy: str,
        groups: Sequence[TrajectoryGroup | GroupRef],
        config: GRPOConfig | None = None,
        **options: Unpack[StepOptions],
    ) -> Job:
        """Queues a training step and returns at once. Calling it again with the same key returns the same job.

        Args:
            policy: The policy to train.
            groups: Runs to compare: groups of `gather`, or references to completions.
            config: Learning rate, loss and other settings of the step; None: the defaults.
            options: Fields of `StepOptions`.

        Raises:
            ConfigError: An element of `groups` is no group; or `nodes`, `retry_credit` or `advantages` is given with a
                `GroupRef`, whose completions do not say where they were made; or a run lacks its advantage, or it is no
                finite number.
        """
        check_keywords(options, StepOptions)
        request = StepRequest(
            groups=_references(policy, groups, options),
            config=config or GRPOConfig(),
            from_version=options.get("from_version"),
            idempotency_key=options.get("idempotency_key") or uuid.uuid4().hex,
            time_limit=options.get("time_limit"),
        )
        runs = [run for group in groups if isinstance(group, TrajectoryGroup) for run in group.trajectories]
        with tracing.span(f"submit step {policy}", {"art.policy": policy}, kind="producer", links=traces_of(runs)):
            return await self._read(Job, "POST", f"/api/policies/{policy}/steps", record=request)

    async def find_step(self, policy: str, idempotency_key: str) -> Job | None:
        """The job of a step that the server has accepted: after a crash, it shows whether the step must be sent again.

        Args:
            policy: Name of the policy.
            idempotency_key: The key that the step was sent with.

        Returns:
            The job; None where no step was accepted under this key.
        """
        try:
            params = {"idempotency_key": idempotency_key}
            return await self._read(Job, "GET", f"/api/policies/{policy}/steps", params=params)
        except ServerError as error:
            if error.status == 404:
                return None
            raise

    async def job(self, job_id: str, *, wait: float = 0.0) -> Job:
        """A job by its id.

        Args:
            job_id: Id of the job.
            wait: Seconds to wait for the job to end, 60 at most; 0 returns its present state at once.
        """
        return await self._read(Job, "GET", f"/api/jobs/{job_id}", params={"wait": wait}, timeout=wait + 30)

    async def jobs(self, *, limit: int = 100, status: JobStatus | None = None) -> list[Job]:
        """Jobs of all policies, newest first.

        Args:
            limit: How many at most, up to 1000.
            status: Only jobs with this status; None: all.
        """
        params: dict[str, str | int] = {"limit": limit, **({"status": status.value} if status else {})}
        return (await self._read(JobList, "GET", "/api/jobs", params=params)).jobs

    async def cancel(self, job_id: str) -> Job:
        """Cancels a queued or running step or warm start. Cancelling it again returns the same job.

        The policy stays at the version that it had. To break off a running job, the server ends the trainer and starts
        it again.

        Returns:
            The cancelled job.

        Raises:
            ServerError: 404 where there is no such job, 409 where it has ended or made its version.
        """
        return await self._read(Job, "POST", f"/api/jobs/{job_id}/cancel")

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
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[measured]}"),
        )
        with progress_bar(*columns, shown=progress is not None) as bar:
            task = bar.add_task(progress or "", total=1.0, measured="")
            held_up = None
            try:
                async with asyncio.timeout(timeout):
                    while not job.status.final:
                        job = await self.job(job.id, wait=_POLL_INTERVAL if progress else _WAIT)
                        bar.update(task, completed=job.progress or 0.0, measured=losses(job.measured))
                        if job.held_up not in (None, held_up):
                            held_up = job.held_up
                            log.warning("%s stays open, and waits: %s", job.id, held_up)
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
        timeout: float | None = None,
        **options: Unpack[StepOptions],
    ) -> StepResult:
        """Takes a training step on the policy's own completions. Returns when the gateway serves the new version.

        Args:
            policy: The policy to train.
            groups: Runs to compare: groups of `gather`, or references to completions.
            config: Learning rate, loss and other settings of the step; None: the defaults.
            timeout: Seconds to wait for the step; None: as long as it takes.
            options: Fields of `StepOptions`.

        Returns:
            The new version, the step's metrics, and in `trajectories` the ids of those that were trained, as `groups`
            names them. When there was nothing to learn from, the version stays and `metrics["skipped"]` says why.
            `metrics["job"]` has the job's id and its seconds by phase.

        Raises:
            ConfigError: `submit` refuses the groups.
            JobFailed: The step failed or was cancelled; the policy stays at the version it had.
            TimeoutError: The step has not ended in time. It goes on: wait for it again, or cancel it.
        """
        return await self.result(await self.submit(policy, groups, config, **options), timeout=timeout)

    async def sft(
        self,
        policy: str,
        demonstrations: Demonstrations,
        config: SFTConfig | None = None,
        *,
        progress: bool = True,
        timeout: float | None = None,
        **options: Unpack[SFTOptions],
    ) -> StepResult:
        """Warm start: the next version of a policy imitates demonstrations, by supervised fine-tuning.

        Only the assistants' messages are trained. With `validation`, the loss on demonstrations that are not trained is
        measured before training, after each epoch, and within long epochs. The version has the weights with the least
        of these losses, and the warm start ends when they do not fall any more (`SFTConfig.patience`).

        Args:
            policy: The policy to train.
            demonstrations: A JSONL file in OpenAI's fine-tuning format (`{"messages": […], "tools": […]}` a line),
                conversations of that form, or trajectories. For trajectories, the sampled tokens are trained.
            config: Learning rate, epochs, `max_seconds` and other settings. With `min_reward`, only runs with at least
                that reward are used.
            progress: Shows a bar on a terminal.
            timeout: Seconds to wait for the warm start; None: as long as it takes.
            options: Fields of `SFTOptions`.

        Returns:
            What `train_step` returns. `metrics["stopped"]` says what ended the training: "epochs", "patience" or
            "max_seconds"; `metrics["validation_losses"]` has the held-out losses, the first one before training. When
            no weights had a smaller held-out loss than the version that there was, the version stays and
            `metrics["skipped"]` says so.

        Raises:
            ConfigError: A demonstration is no conversation, or there are none, or `nodes` is given with
                conversations, or `validation` leaves nothing to imitate or to measure.
            JobFailed: The warm start failed; the policy stays at the version it had.
            TimeoutError: The warm start has not ended in time. It goes on: wait for it again, or cancel it.
        """
        options["idempotency_key"] = options.get("idempotency_key") or uuid.uuid4().hex
        request = sft_request(demonstrations, config, **options)
        job = await self._read(Job, "POST", f"/api/policies/{policy}/sft", record=request)
        return await self.result(job, progress=f"warm start of {policy}" if progress else None, timeout=timeout)

    async def result(self, job: Job, *, progress: str | None = None, timeout: float | None = None) -> StepResult:
        """Waits for a submitted step or warm start.

        Args:
            job: The job.
            progress: Label of a progress bar on the terminal; None: no bar.
            timeout: Seconds to wait; None: as long as the job takes.

        Returns:
            The result of the job, with `metrics["job"]`: the job's id and its seconds by phase.

        Raises:
            JobFailed: The step failed; the policy stays at the version it had.
            TimeoutError: The job has not ended in time. It goes on.
        """
        job = await self.wait(job, progress=progress, timeout=timeout)
        assert job.result is not None
        job.result.metrics["job"] = {"id": job.id, "seconds": job.seconds}
        return job.result


def _references(policy: str, groups: Sequence[TrajectoryGroup | GroupRef], options: StepOptions) -> list[GroupRef]:
    """The groups of a step, as completions and rewards. Raises ConfigError as `submit` says."""
    nodes, retry_credit = options.get("nodes"), options.get("retry_credit", "drop")
    advantages = options.get("advantages")
    for number, group in enumerate(groups):
        if not isinstance(group, TrajectoryGroup | GroupRef):
            raise ConfigError(
                f"group {number} (counted from 0) is of type {type(group).__name__}: a step compares runs, so it takes "
                "TrajectoryGroup(scenario=…, trajectories=[…]) or GroupRef"
            )
        if isinstance(group, GroupRef) and advantages is not None:
            raise ConfigError(
                f"group {number} (counted from 0) is a GroupRef: leave out advantages=, and set those of its "
                "trajectories, or pass a TrajectoryGroup"
            )
        if isinstance(group, GroupRef) and (nodes is not None or retry_credit != "drop"):
            raise ConfigError(
                f"group {number} (counted from 0) is a GroupRef, which does not say in which node a completion was "
                "made: leave out nodes= and retry_credit=, or pass a TrajectoryGroup"
            )
    refs = [group for group in groups if isinstance(group, GroupRef)]
    whole = [group for group in groups if isinstance(group, TrajectoryGroup)]
    if several := [group.scenario.id for group in whole if len(group.judgements) > 1]:
        log.warning(
            "%d groups have rewards of several judgements, or of a judge beside others, which are compared apart: "
            "score all runs of a group together; the first: %s",
            len(several),
            several[0],
        )
    if advantages is not None:
        check_advantages(whole, advantages)
    refs += group_refs(
        whole,
        policy=policy,
        nodes=nodes,
        retry_credit=retry_credit,
        hints=options.get("hints"),
        advantages=advantages,
    )
    if twice := find_repeats(refs):
        log.warning(
            "%d completions are in several references of one step, which trains them once for each run; the first: %s",
            len(twice),
            twice[0],
        )
    return refs
