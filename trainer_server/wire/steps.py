"""Training requests: groups of trajectories, by completion id, and the configuration of a step."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trainer_server.wire.bounds import MOST_ROWS, ClosedRecord, ListOf
from trainer_server.wire.numbers import Identifier, reward_problem
from trainer_server.wire.policies import LATEST, MAX_VERSION, NAME_PATTERN, VersionNumber, VersionRef, version_number

LOSS_NAMES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "dppo")
"""The losses that every trainer has."""
MOST_ITERATIONS = 1_000
"""Passes over one batch."""
MOST_MINIBATCHES = 10_000
MOST_TOKENS = 2**24
"""Tokens of a row, or of a completion."""
MOST_HINT = 100_000
"""Characters of a hint."""
MOST_UPDATES = 10**9
"""Optimizer updates of a schedule."""
TimeLimit = Annotated[float | None, Field(gt=0, le=366 * 86400)]
"""Seconds that the trainer may take for one job, to be counted from when it starts the job."""

LEARNING_RATE = {"learning_rate": "lr"}
_TRL_NAMES = LEARNING_RATE | {
    "vllm_importance_sampling_clip_max": "importance_sampling_cap",
    "vllm_importance_sampling_clip_min": "importance_sampling_floor",
    "vllm_importance_sampling_mode": "importance_sampling_mode",
}


def rename_keys(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Replaces TRL's names by the names used here.

    Args:
        values: Values by either name.
        names: TRL's name → the name used here.

    Raises:
        ValueError: A value is given under both names.
    """
    if twice := next((name for name, own in names.items() if name in values and own in values), None):
        raise ValueError(f"{twice} and {names[twice]} are one value: give one of them")
    return {names.get(name, name): value for name, value in values.items()}


BASE_TEACHER = "base"
"""The teacher that is the base model without any policy's LoRA."""


class TeacherVersion(NamedTuple):
    """A policy as a teacher."""

    policy: str
    version: VersionRef | None
    """None: the version that its name means when the step is computed: the promoted one, else the newest."""


class Distillation(ClosedRecord):
    """On-policy distillation: a teacher scores the tokens that the policy itself sampled.

    The advantage of a token is that of its trajectory's reward, less `weight` · (log π(token) − log teacher(token)).
    Where the policy samples the token, the mean of that difference is the reverse KL divergence KL(π ‖ teacher) of the
    next token, and the step follows its gradient at the texts that the policy writes (arXiv:2306.13649).
    """

    model_config = ConfigDict(allow_inf_nan=False)

    teacher: str | None = Field(default=None, min_length=1, max_length=2000)
    """Whose distribution the policy learns.

    - `big@3`: a version of a policy of this server; `big`: what its name means; `big@latest`: its newest version.
    - `base`: the base model without a LoRA.
    - `http://host:port`, or `https://…`: another vLLM with the same tokenizer, at an address that `serve --teacher-url`
      allows.
    - None: only trajectories with a `hint` have a teacher, the policy that reads the hint."""
    model: str | None = Field(default=None, min_length=1, max_length=200)
    """Name of the model at the teacher's address; None: the only one that it serves."""
    weight: float = Field(default=1.0, gt=0)
    """What a nat of difference counts. Rewards that are scaled by their group are about 1 apart."""
    rewards: bool = True
    """Whether rewards count too. False: the teacher alone teaches, and trajectories need no reward."""

    @model_validator(mode="after")
    def _known_kind(self) -> Self:
        if self.teacher is not None and self.url is None and self.teacher != BASE_TEACHER:
            name, at, number = self.teacher.partition("@")
            if not re.fullmatch(NAME_PATTERN, name) or (at and number != LATEST and version_number(number) is None):
                raise ValueError(
                    f"teacher={self.teacher!r} is no teacher: give a policy (`big`), a version (`big@3`), `base`, or "
                    "the address of a vLLM (`http://host:port`)"
                )
        if self.model is not None and self.url is None:
            raise ValueError(f"model={self.model!r} is the name of a model at an address: teacher={self.teacher!r}")
        return self

    @property
    def url(self) -> str | None:
        """The address of a teacher that is another vLLM, without `/v1`; None: the teacher is none."""
        if self.teacher is None or not self.teacher.startswith(("http://", "https://")):
            return None
        return self.teacher.rstrip("/").removesuffix("/v1")

    @property
    def version(self) -> TeacherVersion | None:
        """The policy that teaches; None: the teacher is none."""
        if self.teacher is None or self.teacher == BASE_TEACHER or self.url is not None:
            return None
        name, _, number = self.teacher.partition("@")
        return TeacherVersion(name, "latest" if number == LATEST else version_number(number))


class GRPOConfig(ClosedRecord):
    """Configuration of one training step. Names and formulas follow TRL's `GRPOConfig`.

    TRL's longer names are accepted as well: `learning_rate`, `vllm_importance_sampling_mode`, `_clip_max`, `_clip_min`
    and `_correction`, and `scale_rewards` as a bool. A sequence is a completion, one call of the model: TRL's formulas
    average and clip over these (`loss_aggregation` averages over trajectories). Completions that are left out do not
    count in an average.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    lr: float = Field(default=3e-4, gt=0, description="learning rate of AdamW")
    loss_type: str = Field(default="dapo", min_length=1)
    """What is maximised at a token, and how tokens are averaged: grpo, dr_grpo, dapo, bnpo, cispo, sapo, dppo, or a
    loss that `serve --loss` registered. The server refuses other names, and its error lists the known ones.

    - grpo: clipped ratios, averaged over each sequence, then over sequences.
    - dapo, bnpo: clipped ratios, averaged over all tokens of the batch.
    - dr_grpo: clipped ratios, divided by a constant length.
    - cispo: capped ratios as weights without a gradient, averaged over all tokens.
    - sapo: a sigmoid instead of a clip, averaged over each sequence.
    - dppo: unclipped ratios, without the tokens whose probability has moved too far, averaged over all tokens.

    GSPO is grpo with `importance_sampling_level="sequence"`."""
    loss_aggregation: Literal["loss_type", "trajectory"] = "loss_type"
    """How tokens are averaged.

    - loss_type: as the loss does it. It knows completions only, so a trajectory with ten calls weighs about ten times
      what a trajectory with one call does.
    - trajectory: over all trained tokens of a trajectory, then over trajectories, whatever the loss does otherwise. A
      trajectory with ten calls weighs what one with a single call does. A minibatch has whole trajectories."""
    distill: Distillation | None = None
    """A teacher that scores every sampled token, beside the rewards or instead of them. A text is the teacher's name:
    `distill="big@3"`. None: rewards only."""
    max_completion_length: int = Field(default=1024, gt=0, le=MOST_TOKENS)
    """The constant length of dr_grpo, in tokens; without effect with `loss_aggregation="trajectory"`."""
    epsilon: float = Field(default=0.2, gt=0)
    """Lower clip range of the ratio: it is clipped at 1 - epsilon."""
    epsilon_high: float | None = Field(default=0.28, gt=0)
    """Upper clip range; None: the same as epsilon. For cispo it is the cap of the ratio itself, by default 5."""
    delta: float | None = Field(default=None, gt=0)
    """Upper bound of the ratio in the unclipped term (two-sided clipping); None: off."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty (k3) against the reference version."""
    reference_version: VersionNumber = 0
    """The version that the KL penalty compares with. 0 is untrained; after a warm start, use the version it made."""
    use_bias_correction_kl: bool = False
    """Whether the KL penalty is multiplied by the ratio, which makes its gradient unbiased."""
    sapo_temperature_pos: float = Field(default=1.0, gt=0)
    """Steepness of sapo's sigmoid for tokens with a positive advantage."""
    sapo_temperature_neg: float = Field(default=1.05, gt=0)
    """Steepness of sapo's sigmoid for all other tokens."""
    dppo_mask_low: float = Field(default=0.2, gt=0, le=1)
    """dppo leaves out tokens with a negative advantage whose probability has fallen by more than this."""
    dppo_mask_high: float = Field(default=0.2, gt=0, le=1)
    """dppo leaves out tokens with a positive advantage whose probability has risen by more than this."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """What divides the advantages: the standard deviation of the group's rewards, of the batch's, or nothing."""
    group_baseline: Literal["mean", "leave_one_out"] = "mean"
    """What a reward is compared with: the mean of its group, or the mean of the other rewards in its group, as in TRL's
    RLOOTrainer."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Whether ratios are those of tokens or of whole sequences."""
    proximal_policy: Literal["sampler", "step"] = "sampler"
    """What the ratios of a completion of an older version compare with, and so what clipping is around.

    - sampler: the version that sampled it.
    - step: the version that the step begins with. Importance weights correct for what lies between it and the sampler
      (decoupled clipping, arXiv:2505.24298). Completions of the newest version are trained alike by both."""
    importance_sampling_cap: float | None = Field(default=2.0, gt=0)
    """Upper bound of the importance weights, which correct for the difference between the sampler's and the trainer's
    log-probs; None and no floor: no correction. TRL's `vllm_importance_sampling_clip_max`; TRL's
    `vllm_importance_sampling_correction=False` sets cap and floor to None."""
    importance_sampling_floor: float | None = Field(default=None, gt=0)
    """Lower bound of the importance weights; None: none. TRL's `vllm_importance_sampling_clip_min`."""
    importance_sampling_mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "token_truncate"
    )
    """Whether importance weights are those of tokens or of completions, and whether a weight outside the bounds is set
    to the bound (truncate) or to 0 (mask)."""
    off_policy_mask_threshold: float | None = Field(default=None, gt=0)
    """Leaves out completions with a negative advantage whose mean log-prob has fallen by more than this since they were
    sampled, in nats per token."""
    max_staleness: int | None = Field(default=None, ge=0, lt=MAX_VERSION)
    """Completions sampled by a version more than this far behind the newest are skipped and counted; None: no limit."""
    max_logp_gap: float | None = Field(default=1.0, gt=0)
    """The step fails when the log-probs of trainer and engine differ by more than this on completions of the newest
    version, on average, in nats per token; None: no check. A larger difference means that one of them has another
    adapter, temperature or template. About 0.02 is usual in bf16."""
    mask_truncated_completions: bool = False
    """Whether completions that were cut by the limit of tokens are left out."""
    num_iterations: int = Field(default=1, ge=1, le=MOST_ITERATIONS)
    """Passes over the batch. From the second update on, ratios compare with the version that the step began with."""
    num_minibatches: int = Field(default=1, ge=1, le=MOST_MINIBATCHES)
    """Minibatches of a pass, each one optimizer update. Groups stay whole if there are enough groups; with
    `loss_aggregation="trajectory"`, trajectories always do."""
    entropy_coef: float = 0.0
    """Weight of the mean entropy in the objective that is maximised."""
    top_entropy_quantile: float = Field(default=1.0, ge=0, le=1)
    """Fraction of the tokens that have a policy gradient: those with the highest entropy."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """The learning rate after the warm-up: constant, or falling to 0 at `max_steps`."""
    warmup_steps: int = Field(default=0, ge=0, le=MOST_UPDATES)
    """Optimizer updates over which the learning rate rises from 0. They are counted, like `max_steps`, from the first
    update of the policy, or from the first after a warm start."""
    max_steps: int | None = Field(default=None, gt=0, le=MOST_UPDATES)
    """Optimizer updates after which a falling learning rate is 0."""
    weight_decay: float = Field(default=0.0, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    adam_epsilon: float = Field(default=1e-8, gt=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    token_budget: int = Field(default=8192, gt=0, le=MOST_TOKENS)
    """Unique tokens in one packed row. A larger batch is split into micro-batches of one optimizer step, as TRL does
    with `gradient_accumulation_steps`. On a GPU, rows have up to 32,768 where that fits, unless this is lower than the
    default; completions that are longer than this are left out in any case."""

    @model_validator(mode="before")
    @classmethod
    def _as_trl_has_it(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = rename_keys(data, _TRL_NAMES)
        if (correction := data.pop("vllm_importance_sampling_correction", None)) is not None and not correction:
            data |= {"importance_sampling_cap": None, "importance_sampling_floor": None}
        if isinstance(data.get("distill"), str):
            data["distill"] = {"teacher": data["distill"]}
        if isinstance(data.get("scale_rewards"), bool):
            data["scale_rewards"] = "group" if data["scale_rewards"] else "none"
        return data

    @model_validator(mode="after")
    def _schedule(self) -> Self:
        if self.lr_scheduler_type != "constant" and (self.max_steps is None or self.max_steps <= self.warmup_steps):
            raise ValueError(
                f"lr_scheduler_type={self.lr_scheduler_type!r} falls to 0 at max_steps: give more than "
                f"warmup_steps={self.warmup_steps}, not {self.max_steps}"
            )
        floor, cap = self.importance_sampling_floor, self.importance_sampling_cap
        if floor is not None and cap is not None and floor >= cap:
            raise ValueError(f"importance_sampling_floor={floor} must be below importance_sampling_cap={cap}")
        if self.proximal_policy == "step" and floor is None and cap is None:
            raise ValueError(
                "proximal_policy='step' needs importance weights, which correct for what lies between sampler and "
                "step: give importance_sampling_cap"
            )
        return self

    @model_validator(mode="after")
    def _divergence(self) -> Self:
        if self.loss_type == "dppo" and self.importance_sampling_level != "token":
            raise ValueError(
                f"importance_sampling_level={self.importance_sampling_level!r}: dppo compares the probabilities of "
                "tokens; give 'token'"
            )
        if self.loss_type == "dppo" and self.proximal_policy != "sampler":
            raise ValueError(
                f"proximal_policy={self.proximal_policy!r}: the masks of dppo are around the sampler; give 'sampler'"
            )
        return self

    @property
    def rewards_count(self) -> bool:
        """Whether trajectories are trained by their rewards. Otherwise those without one are trained too."""
        return self.distill is None or self.distill.rewards

    @model_validator(mode="after")
    def _alone(self) -> Self:
        if self.distill is not None and self.distill.teacher is None and not self.distill.rewards:
            raise ValueError("distill has rewards=False and no teacher: nothing would teach; name a teacher")
        return self

    @model_validator(mode="after")
    def _clip_range(self) -> Self:
        if self.loss_type == "cispo":
            if "epsilon_high" not in self.model_fields_set:
                self.epsilon_high = 5.0  # ScaleRL's value; the other losses' clip range would scale the loss down
            if self.epsilon_high is None or self.epsilon_high < 1:
                raise ValueError(f"epsilon_high={self.epsilon_high}: cispo caps the ratio itself there; give 1 or more")
        elif self.delta is not None and self.delta <= 1 + (self.epsilon_high or self.epsilon):
            raise ValueError(f"delta={self.delta} must exceed 1 + epsilon_high, or it clips inside the trust region")
        return self


class TrajectoryRef(BaseModel):
    """What a step needs of a trajectory: its reward and the ids of its completions."""

    id: Identifier
    reward: float | None
    """None or not finite: the trajectory is not trained, but counted as skipped."""
    completions: ListOf[str]
    run: Identifier | None = None
    """Id of the whole trajectory, where the reference has a part of it: the completions of a node, or a single one.
    With `loss_aggregation="trajectory"`, all parts of a trajectory count as one. None: the reference is the whole."""
    advantage: float | None = Field(default=None, allow_inf_nan=False)
    """Takes the place of what the rewards of the group would give: the step neither compares nor scales it. A
    trajectory without a reward is not trained with an advantage either. In a group, all trajectories that have a reward
    have an advantage, or none has. None: the rewards count."""
    hint: str | None = Field(default=None, min_length=1, max_length=MOST_HINT)
    """What the policy would have needed to know. Its teacher is then the policy itself with the hint in its prompts: a
    step trains the tokens of these completions towards what it would have said. None: no hint."""

    @property
    def trajectory(self) -> str:
        """Id of the whole trajectory."""
        return self.id if self.run is None else self.run

    @field_validator("reward")
    @classmethod
    def _finite(cls, reward: float | None) -> float | None:
        return reward if reward is not None and math.isfinite(reward) else None


class GroupRef(BaseModel):
    """Trajectories of one scenario. Their rewards are compared with one another, or with a baseline."""

    scenario_id: str
    trajectories: ListOf[TrajectoryRef] = Field(max_length=MOST_ROWS)
    baseline: float | None = Field(default=None, allow_inf_nan=False)
    """What rewards are compared with; None: as `GRPOConfig.group_baseline` says. A baseline is for single runs, which
    have no group. Their advantages are not divided by a standard deviation of the group."""


def wrong_reward(groups: Sequence[GroupRef]) -> str | None:
    """Which reward, baseline or advantage of a step cannot be trained, in words that name the trajectory or the group;
    None: none."""
    for group in groups:
        comparable = [reference for reference in group.trajectories if reference.reward is not None]
        lacking = [reference.id for reference in comparable if reference.advantage is None]
        if 0 < len(lacking) < len(comparable):
            return (
                f"the trajectory {lacking[0]!r} of the group {group.scenario_id!r} has a reward and no advantage, and "
                "others of the group have one: give all of them an advantage, or none"
            )
        if group.baseline is not None and (wrong := reward_problem(group.baseline)):
            return f"the baseline of the group {group.scenario_id!r}: {wrong}"
        for reference in group.trajectories:
            if reference.reward is not None and (wrong := reward_problem(reference.reward)):
                return f"the trajectory {reference.id!r}: {wrong}"
            if reference.advantage is not None and (wrong := reward_problem(reference.advantage, "advantage")):
                return f"the trajectory {reference.id!r}: {wrong}"
    return None


class StepRequest(ClosedRecord):
    """What `POST /api/policies/{name}/steps` takes."""

    groups: ListOf[GroupRef] = Field(min_length=1, max_length=MOST_ROWS)
    config: GRPOConfig = Field(default_factory=GRPOConfig)
    from_version: VersionNumber | None = None
    """The version that the step goes on from; None: the newest. The new version is the newest in any case."""
    idempotency_key: str | None = Field(default=None, max_length=200)
    """A request with the key of an earlier one is answered with the earlier job. The header `Idempotency-Key` does the
    same."""
    time_limit: TimeLimit = None
    """Seconds that the trainer may take. A step that takes longer is broken off, and its job fails. None, or more than
    `serve --job-time-limit`: the server's limit."""

    @property
    def hints(self) -> list[tuple[str, str]]:
        """(id of a completion, hint) of all completions that have a hint."""
        references = [reference for group in self.groups for reference in group.trajectories if reference.hint]
        return list(dict.fromkeys((id, str(ref.hint)) for ref in references for id in ref.completions))


class StepResult(BaseModel):
    """What a step did."""

    version: int
    """The policy's newest version after the step. It is unchanged when there was nothing to learn from; then
    `metrics["skipped"]` says why."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    trajectories: ListOf[str] | None = None
    """Ids of the trajectories that a step trained, as its request named them, in its order: those of which at least one
    completion had a loss. Empty for a step that had nothing to learn from. None for other kinds of jobs, and in lists
    of jobs."""


JobKind = Literal["create", "step", "sft"]
"""What a job makes: version 0, or one more version by policy gradient or by imitation."""


class JobStatus(StrEnum):
    """State of a job: queued → running → succeeded | failed | cancelled, or queued → cancelled.

    A running job whose trainer process was killed is run again.
    """

    queued = "queued"
    running = "running"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"
    """A client cancelled the job before it made a version. The job changed nothing."""

    @property
    def final(self) -> bool:
        """Whether the job will not change any more."""
        return self in (JobStatus.succeeded, JobStatus.failed, JobStatus.cancelled)


class Job(BaseModel):
    """A training request, its progress and its outcome."""

    id: str
    """Ids sort by time of acceptance."""
    kind: JobKind
    policy: str
    status: JobStatus
    created: float
    """Unix time, seconds."""
    finished: float | None = None
    """Unix time, seconds; None until the job is final."""
    error: str | None = None
    """Why the job failed or was cancelled."""
    held_up: str | None = None
    """Why an open job does not go on: the trainer or an engine does not start. None: as far as the server knows, it
    does. Lists leave it out."""
    result: StepResult | None = None
    """What the job made; None unless it succeeded."""
    progress: float | None = None
    """Fraction of the trainer's work that is done, 0 to 1; None where it is not known."""
    measured: dict[str, float] = Field(default_factory=dict)
    """What the trainer of a running warm start has measured so far: `loss`, `validation_loss` (the newest),
    `epoch`, `updates`, `updates_left`, `seconds_left` (an estimate). Empty for other jobs."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """Wall time of each phase, seconds: `render` (sft only), `teacher` (steps that ask another vLLM, or have hints),
    `train`, `swap`. Of a step also `engines_idle`: how long engines had no request since the policy's step before, on
    average; not of the first step after a start of the server."""

    def without_trajectories(self) -> Job:
        """The job as lists show it: its result does not name the trajectories."""
        if self.result is None or self.result.trajectories is None:
            return self
        return self.model_copy(update={"result": self.result.model_copy(update={"trajectories": None})})


class JobList(BaseModel):
    """What `GET /api/jobs` answers."""

    jobs: ListOf[Job]
    """Newest first."""
