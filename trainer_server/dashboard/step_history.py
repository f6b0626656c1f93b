"""Whether a run was trained, by which steps, and why not: in words, from the files of the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.run_list import RunRow
from trainer_server.ledger.step_tokens import CompletionInStep, StepTokens, read_step_tokens
from trainer_server.wire import Completion, CompletionStatus, Job, JobStatus

REASONS = {
    "equal_rewards": "all runs of its group got the same reward, so there is nothing to prefer",
    "single_reward": "it was alone in its group, with nothing to compare its reward with",
    "zero_advantages": "all advantages of its group are 0",
    "no_reward": "it has no reward",
    "repeated": "the step was sent it several times, and trained it once",
    "evaluation": "it evaluates a version",
    "missing": "the ledger does not have the completion",
    "aborted": "the client went away before the answer was whole",
    "failed": "the engine went away, or answered without exact tokens",
    "refused": "the engine took no such request",
    "incomplete": "tokens of it are missing, or its prompt has images",
    "greedy": "it was sampled at temperature 0",
    "hinted": "it had a hint in its prompt",
    "other_policy": "another policy answered",
    "other_base_model": "it was sampled on another base model",
    "other_server": "another server recorded it",
    "other_tokenizer": "its tokens are those of another tokenizer",
    "empty": "it has no sampled tokens",
    "teacher_missing": "the teacher gave it no score",
    "teacher_temperature": "the teacher scores completions of temperature 1 only",
    "hint_not_rendered": "its prompt could not be rendered with the hint",
    "stale": "it was sampled by a version that is too old (max_staleness)",
    "truncated": "the limit of tokens cut it (mask_truncated_completions)",
    "forced": "a grammar forced all of its tokens",
    "too_long": "it is longer than the token budget",
    "version_gone": "the version that sampled it was deleted, and its log-probs would be needed",
}
"""What the reasons of a step mean."""


@dataclass(frozen=True, slots=True)
class StepOfRun:
    """A training step whose request contains a run."""

    job: str
    reference: str
    """Id of the trajectory, or of a part of it, as the step's request has it."""
    reward: float | None
    state: str
    """`trained`, `not trained`, `waits` or `ended without a version`."""
    version: int | None
    """The version that the step made."""
    words: str
    tokens: StepTokens | None
    """What the step measured; None: it wrote nothing of it."""

    @property
    def advantage(self) -> float | None:
        """That of the completions that the step trained of it; None: none, or the step wrote nothing of it."""
        entries = self.tokens.completions if self.tokens else ()
        return next((entry.advantage for entry in entries if entry.trajectory == self.reference), None)


def words_of(reason: str) -> str:
    """A reason of a step, in words."""
    return REASONS.get(reason, reason.replace("_", " "))


def steps_of(board: JobQueue, step_rows: Sequence[tuple[str, str, float | None]]) -> list[StepOfRun]:
    """The outcome of a run in each step whose request contains it, the newest step first.

    Args:
        board: The jobs.
        step_rows: (job, reference, reward), as `RunList.steps` has them.
    """
    jobs: dict[str, tuple[Job | None, StepTokens | None]] = {}
    steps = []
    for job_id, reference, reward in reversed(step_rows):
        if job_id not in jobs:
            directory = board.root / job_id
            jobs[job_id] = (board.job(job_id), read_step_tokens(directory)) if board.exists(job_id) else (None, None)
        steps.append(_step(job_id, reference, reward, *jobs[job_id]))
    return steps


def _step(job_id: str, reference: str, reward: float | None, job: Job | None, tokens: StepTokens | None) -> StepOfRun:
    state, version = "not trained", None
    if job is None:
        state, words = "not known", "the job was deleted, and what it trained with it"
    elif not job.status.final:
        state, words = "waits", f"the step is {job.status}"
    elif job.status is not JobStatus.succeeded or job.result is None:
        state, words = "ended without a version", f"the step {job.status}: {job.error or 'no reason is known'}"
    elif reference in (job.result.trajectories or ()):
        state, version, words = "trained", job.result.version, f"made version {job.result.version}"
    else:
        codes: Sequence[str] = ()
        if tokens:
            codes = tokens.reasons(reference)
            codes = codes or [entry.reason for entry in tokens.left_out if entry.trajectory == reference]
        reasons = [words_of(code) for code in dict.fromkeys(codes)]
        if not reasons and reward is None:
            reasons = [REASONS["no_reward"]]
        words = "; ".join(reasons) or "the step does not say why"
    return StepOfRun(job_id, reference, reward, state, version, words, tokens)


def why_never_sent(row: RunRow | None, completions: Sequence[Completion]) -> str:
    """Why no step contains a run, as far as the run itself shows it."""
    if row is not None and row.evaluation:
        return "It evaluates a version: no step takes it."
    if completions and all(completion.hint for completion in completions):
        return "It had hints: no step takes it."
    if completions and all(completion.greedy for completion in completions):
        return "It was sampled at temperature 0: no step takes it."
    if row is None or row.reward is None:
        return "It has no reward, and no step was sent it."
    return "No step was sent it until now."


def of_completion(row: Completion, steps: Sequence[StepOfRun]) -> tuple[StepOfRun | None, CompletionInStep | None, str]:
    """Whether a completion was trained: (the newest step that was sent it, what that step measured, words)."""
    for step in steps:
        if step.tokens is None:
            continue
        if (measurement := step.tokens.of(step.reference, row.id)) is not None:
            count = sum(measurement.trained)
            return step, measurement, f"{step.state}: {count} of {len(row.token_ids)} tokens had a loss"
        if reasons := step.tokens.reasons(step.reference, row.id):
            return step, None, f"left out: {'; '.join(words_of(reason) for reason in dict.fromkeys(reasons))}"
    if row.status is not CompletionStatus.complete:
        return None, None, f"never trained: {words_of(row.status)}"
    never = {
        row.untrainable or "": row.untrainable is not None,
        REASONS["hinted"]: row.hint is not None,
        REASONS["greedy"]: row.greedy,
        "the base model answered": row.policy is None,
    }
    if reason := next((reason for reason, holds in never.items() if holds), None):
        return None, None, f"never trained: {reason}"
    if steps:
        return steps[0], None, f"the step that it was sent to wrote nothing of its tokens ({steps[0].state})"
    return None, None, "no step was sent it until now"
