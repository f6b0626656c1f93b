"""The warm start: the policy imitates the references of the training scenarios, until that helps no more."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

from art_langgraph.client.client import TrainerClient
from art_langgraph.costs.tokens import Tokens
from art_mcp.specialization.context import RunContext
from art_mcp.specialization.demonstrations import shown_and_kept
from art_mcp.specialization.imitation import Imitation
from art_mcp.specialization.stage_runner import LEAST, Stage
from trainer_server.wire import JobStatus, StepResult

log = logging.getLogger("art_mcp")


@dataclass
class WarmStartStage(Stage):
    """Lets the policy imitate demonstrations."""

    context: RunContext
    name = "warm start"
    trains = True

    @property
    def weight(self) -> float:
        """None if the settings have no warm start."""
        return 0.0 if self.context.options.imitation is None else 46.0

    def skip_reason(self) -> str | None:
        """There are no demonstrations, or there is too little time."""
        if self.context.options.imitation is None:
            return ""
        if not self._imitation.conversations:
            return "no reference of the training scenarios was executed"
        runner = self.context.runner
        seconds = runner.budget.allows(self.name)
        if seconds is not None and seconds < LEAST and not runner.directory.journal.of("begin", self.name):
            return f"only {seconds:.0f} s are left for it"
        return None

    async def run(self) -> None:
        """Imitates them."""
        context, runner, imitation = self.context, self.context.runner, self._imitation
        with runner.stage(self.name, f"imitating {len(imitation.conversations)} demonstrations") as record:
            result = await warm_start(
                context.trainer,
                context.options.policy,
                imitation,
                seconds=record.seconds,
                key=f"{runner.directory.name}-warm-start",
                progress=context.options.progress,
            )
            metrics = result.metrics
            tokens = Tokens(trained=round(metrics.get("tokens_unique", 0) * metrics.get("epochs", 0)))
            record.facts |= {
                "version": result.version,
                "metrics": metrics,
                "tokens": tokens.summary(),
                "scenarios": imitation.imitated_ids(metrics),
            }
            await self.restore(record.facts)
            runner.on_stage(f"{context.outcome.model}: {_description(metrics)}")
            if left_out := {reason: count for reason, count in metrics.get("turns_skipped", {}).items() if count}:
                reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
                context.note("imitated", f"answers that the warm start did not imitate: {reasons}")

    async def restore(self, end: Mapping[str, Any]) -> None:
        """Takes the version that it made, and which scenarios were imitated."""
        self.context.outcome.warm_start, self.context.outcome.version = end["metrics"], end["version"]
        self.context.imitated_ids = end["scenarios"]

    @cached_property
    def _imitation(self) -> Imitation:
        """What is imitated. If steps follow, they get some of the scenarios for themselves."""
        context, options = self.context, self.context.options
        assert options.imitation is not None
        return Imitation.of(
            options.imitation,
            context.training if options.training.steps == 0 else shown_and_kept(context.training, options.seed)[0],
            context.selection,
            context.toolbox.tools,
            options.runs.system,
            options.seed,
            context.outcome.scenarios.held_out,
        )


async def warm_start(
    client: TrainerClient,
    policy: str,
    imitation: Imitation,
    *,
    seconds: float | None,
    key: str,
    progress: bool,
) -> StepResult:
    """Lets the policy imitate the demonstrations. A warm start that the server accepted before a kill is waited for.

    Args:
        client: The trainer server.
        policy: The policy.
        imitation: What is imitated.
        seconds: The time. None: as long as the passes take.
        key: Name of the warm start at the server.
        progress: Whether to show a progress bar on a terminal.

    Raises:
        JobFailed: The warm start failed.
    """
    for attempt in count(1):
        name = key if attempt == 1 else f"{key}-attempt-{attempt}"
        job = await client.find_step(policy, name)
        if job is None:
            config = imitation.config
            if seconds is not None and config.max_seconds is None:
                config = config.model_copy(update={"max_seconds": max(1.0, seconds), "fit_to_time": True})
            return await client.sft(
                policy,
                imitation.conversations,
                config,
                validation=imitation.validation or None,
                idempotency_key=name,
                progress=progress,
            )
        if job.status not in (JobStatus.failed, JobStatus.cancelled):
            return await client.result(job, progress=f"warm start of {policy}" if progress else None)
        log.warning("the warm start %s %s (%s); it is done again", job.id, job.status.value, job.error)
    raise AssertionError("count() does not end")


def _description(metrics: Mapping[str, Any]) -> str:
    """What a warm start did, in words."""
    if skip_reason := metrics.get("skipped"):
        return f"the warm start changed nothing: {skip_reason}"
    losses = metrics.get("validation_losses") or [metrics.get("loss_first"), metrics.get("loss_last")]
    what = "held-out loss" if metrics.get("validation_losses") else "loss"
    least = min((loss for loss in losses if isinstance(loss, float)), default=None)
    if least is None or not isinstance(losses[0], float):
        return f"{metrics.get('updates')} updates"
    return f"{metrics.get('updates')} updates, {what} {losses[0]:.3f} to {least:.3f}, ended by {metrics.get('stopped')}"
