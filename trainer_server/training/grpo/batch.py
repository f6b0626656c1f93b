"""Groups of trajectories → the completions that a step trains on, with advantages; what is left out is counted."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trainer_server.jobs.job_files import Teaching
from trainer_server.ledger.step_tokens import CompletionInStep, LeftOut, round_values
from trainer_server.wire import (
    Completion,
    CompletionStatus,
    GroupRef,
    GRPOConfig,
    TrainingError,
    TrajectoryRef,
    prefix_drift,
    wrong_reward,
)

EPSILON = 1e-4
"""Added to the standard deviation, as TRL does."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where completions come from that a trainer can train. Its versions come from there too.

    Args:
        base_model: Name of the base model.
        tokenizer: Fingerprint of the tokenizer.
        server_id: Id of the server. Versions of other servers have the same numbers and other weights. None: of none.
        revision: Commit of a base model from the hub.
    """

    base_model: str
    tokenizer: str
    server_id: str | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion of one trajectory. A completion of several trajectories has one sample in each."""

    completion: Completion
    advantage: float
    trained_mask: tuple[bool, ...]
    """By sampled token: False for those that a grammar forced."""
    group: int = 0
    """Samples of one group stay together in a minibatch, where there are enough groups."""
    trajectory: int = 0
    """Number of its trajectory in the batch, the same for all parts of one. `loss_aggregation="trajectory"` averages
    over these."""
    trajectory_id: str = ""
    """Id of its trajectory, as the request has it."""
    old_logprobs: Sequence[float] | None = None
    """By sampled token, under the version that sampled it; recomputed where the sampler's own are not the policy's."""
    teacher_logprobs: Sequence[float] | None = None
    """By sampled token, as a teacher that is another vLLM gave them; NaN where it gave none. None: there is no such
    teacher, or the sample has a hinted prompt."""
    hinted_prompt: Sequence[int] | None = None
    """The prompt with a hint in it. The policy that reads it is the teacher of this sample. None: it has no hint."""

    @property
    def constrained(self) -> bool:
        """Whether it was sampled from another distribution than the policy's: under a grammar, top_p, penalties, …"""
        return bool(self.completion.constrained)

    def in_step(self, logprobs: Sequence[float], entropy: Sequence[float]) -> CompletionInStep:
        """What the step writes of it. Both lists have a value for each sampled token, NaN: it was not computed."""
        return CompletionInStep(
            trajectory=self.trajectory_id,
            completion=self.completion.id,
            advantage=self.advantage,
            trained=list(self.trained_mask),
            logprobs=round_values(logprobs),
            entropy=round_values(entropy),
        )


@dataclass(slots=True)
class Batch:
    """What one step trains on.

    version: the newest one of the policy, which is trained. samples: what is trained. rewards: of all trajectories that
    have one. rewards_by_version: those of trajectories that one version of the policy sampled alone. *_skipped: what is
    not trained, by reason. lengths: sampled tokens of each of the policy's completions. truncated_count: how many of
    these were cut by the limit of tokens. continuations: of the completions in the ledger, how many continue an earlier
    turn in which way. prefix_drift: of all of them. tokens_unscored: sampled tokens that are left out because the
    teacher gave them no score. left_out: each trajectory and completion that is not trained, with the reason.
    """

    version: int = 0
    samples: list[Sample] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    rewards_by_version: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    groups: int = 0
    groups_skipped: Counter[str] = field(default_factory=Counter)
    trajectories: int = 0
    trajectories_skipped: Counter[str] = field(default_factory=Counter)
    completions_skipped: Counter[str] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    truncated_count: int = 0
    continuations: Counter[str] = field(default_factory=Counter)
    prefix_drift: float | None = None
    tokens_unscored: int = 0
    left_out: list[LeftOut] = field(default_factory=list)

    def keeping(self, samples: list[Sample], skip_counts: Counter[str]) -> Batch:
        """The same batch with these samples only. skip_counts: the completions that this leaves out, by reason."""
        remaining = {(sample.trajectory_id, sample.completion.id) for sample in samples}
        before = [(sample.trajectory_id, sample.completion.id) for sample in self.samples]
        reason = " or ".join(skip_counts)
        left_out = [LeftOut(trajectory=a, completion=b, reason=reason) for a, b in before if (a, b) not in remaining]
        return dataclasses.replace(
            self,
            samples=samples,
            completions_skipped=self.completions_skipped + skip_counts,
            left_out=[*self.left_out, *left_out],
        )

    def skip(self, trajectory: str, completion: str, reason: str) -> None:
        """Leaves a completion out, and counts it."""
        self.completions_skipped[reason] += 1
        self.left_out.append(LeftOut(trajectory=trajectory, completion=completion, reason=reason))

    def skip_trajectories(self, trajectories: Iterable[TrajectoryRef], reason: str) -> None:
        """Leaves trajectories out; they are not counted here."""
        self.left_out += [LeftOut(trajectory=trajectory.id, reason=reason) for trajectory in trajectories]

    def has_teacher(self, config: GRPOConfig) -> bool:
        """Whether a teacher scores any of the tokens."""
        return bool(config.distill and config.distill.teacher) or any(s.hinted_prompt is not None for s in self.samples)

    def why_nothing(self) -> str:
        """Why there is nothing to train, in words."""
        if self.groups_skipped.total() == self.groups:
            if self.groups_skipped["zero_advantages"]:
                return "all advantages are 0, or their groups have no rewards"
            return "every group has fewer than two rewarded trajectories or rewards that are all the same"
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.completions_skipped.items())
        return f"no completion can be trained: {reasons or 'the trajectories name none (see nodes=)'}"

    def metrics(self) -> dict[str, object]:
        """Figures of rewards, advantages, staleness, and of what is left out; keys are those of a step's metrics."""
        advantages = [sample.advantage for sample in self.samples] or [0.0]
        behind = [self.version - (sample.completion.version or 0) for sample in self.samples] or [0]
        return {
            "reward_mean": statistics.fmean(self.rewards) if self.rewards else None,
            "reward_std": statistics.stdev(self.rewards) if len(self.rewards) > 1 else 0.0,
            "reward_by_version": {
                str(version): {"mean": statistics.fmean(rewards), "trajectories": len(rewards)}
                for version, rewards in sorted(self.rewards_by_version.items())
            },
            "advantage_mean": statistics.fmean(advantages),
            "advantage_std": statistics.pstdev(advantages),
            "advantage_max": max(map(abs, advantages)),
            "staleness_mean": statistics.fmean(behind),
            "staleness_max": max(behind),
            "groups": self.groups,
            "groups_skipped": self.groups_skipped.total(),
            "groups_skipped_by": dict(self.groups_skipped),
            "trajectories": self.trajectories,
            "trajectories_skipped": dict(self.trajectories_skipped),
            "trajectories_trained": list(dict.fromkeys(sample.trajectory_id for sample in self.samples)),
            "completions": len(self.samples),
            "completions_skipped": dict(self.completions_skipped),
            "completion_length_mean": statistics.fmean(self.lengths) if self.lengths else None,
            "completion_length_max": max(self.lengths, default=None),
            "completions_truncated": self.truncated_count / len(self.lengths) if self.lengths else None,
            "tokens_sampled": sum(self.lengths),
            "constrained": sum(sample.constrained for sample in self.samples),
            "prefix_drift": self.prefix_drift,
            "continuations": dict(self.continuations),
            **({"teacher_tokens_missing": self.tokens_unscored} if self.tokens_unscored else {}),
        }


def gather_batch(
    groups: Sequence[GroupRef],
    completions: Mapping[str, Completion],
    config: GRPOConfig,
    *,
    policy: str,
    version: int,
    origin: Origin,
    teaching: Teaching | None = None,
    evaluations: Set[str] = frozenset(),
) -> Batch:
    """Looks every completion up, decides whether it is trained, and gives it its trajectory's advantage.

    A group whose rewards are all the same, or whose own advantages are all 0, teaches nothing by itself. Those of its
    trajectories that have a teacher are trained nevertheless, with an advantage of 0. A trajectory that the request has
    several times counts once.

    Args:
        groups: Of the request.
        completions: By id, as the ledger has them.
        config: Of the step.
        policy: That is trained.
        version: Its newest.
        origin: Of the trainer; completions of others are skipped.
        teaching: Scores of a teacher that is another vLLM, and the hinted prompts; None: nothing of either.
        evaluations: Ids of the completions of rollouts that evaluate a version. Their trajectories are skipped.

    Raises:
        TrainingError: A reward is too large, or rewards contradict each other: a completion has two in one trajectory,
            or two trajectories of a group are made of the same completions, so that nothing in them is better or worse.
    """
    if config.rewards_count and (message := wrong_reward(groups)):
        raise TrainingError(f"{message}. No version was made")
    own = [completion for completion in completions.values() if completion.policy == policy]
    batch = Batch(
        version,
        groups=len(groups),
        trajectories=sum(len(group.trajectories) for group in groups),
        lengths=[len(completion.token_ids) for completion in own],
        truncated_count=sum(completion.truncated for completion in own),
        continuations=Counter(
            completion.continuation for completion in completions.values() if completion.continuation
        ),
        prefix_drift=prefix_drift(completions.values()).share,
    )
    groups = _countable(groups, evaluations, batch)
    rewarded_groups = [_with_rewards(group, config, batch) for group in groups]
    for trajectory in (trajectory for group in rewarded_groups for trajectory in group):
        sampler = _sampler(trajectory, completions, policy, origin.server_id)
        if sampler is not None and trajectory.reward is not None:
            batch.rewards_by_version[sampler].append(trajectory.reward)
    if not config.rewards_count:
        rewarded_groups = [group.trajectories for group in groups]
    reasons = {key: _why_skipped(completions[key], config, policy, version, origin) for key in completions}
    _add_samples(batch, groups, rewarded_groups, completions, reasons, config, teaching or Teaching())
    return batch


def _with_rewards(group: GroupRef, config: GRPOConfig, batch: Batch) -> list[TrajectoryRef]:
    """The trajectories of a group that have a reward. Where rewards count, the others are left out of the batch."""
    references = [trajectory for trajectory in group.trajectories if trajectory.reward is not None]
    if config.rewards_count and (missing := len(group.trajectories) - len(references)):
        batch.trajectories_skipped["no_reward"] += missing
        batch.skip_trajectories([ref for ref in group.trajectories if ref.reward is None], "no_reward")
    batch.rewards += [trajectory.reward for trajectory in references if trajectory.reward is not None]
    return references


def _add_samples(
    batch: Batch,
    groups: Sequence[GroupRef],
    trajectories_by_group: Sequence[Sequence[TrajectoryRef]],
    completions: Mapping[str, Completion],
    reasons: Mapping[str, str | None],
    config: GRPOConfig,
    teaching: Teaching,
) -> None:
    """Adds the completions that are trained, with their advantages, to a batch.

    Args:
        batch: Gets the samples, and what is left out.
        groups: Of the request.
        trajectories_by_group: Those of each group that are compared.
        completions: By id.
        reasons: By id of a completion, why it cannot be trained; None: it can.
        config: Of the step.
        teaching: For the teachers of the samples.
    """
    teacher = config.distill.teacher if config.distill else None
    rewards_by_group = [
        [(ref.reward or 0.0) if config.rewards_count else 0.0 for ref in refs] for refs in trajectories_by_group
    ]
    baselines = [group.baseline for group in groups]
    advantages_by_group = advantages(rewards_by_group, config.scale_rewards, baselines, config.group_baseline)
    places, place_of = itertools.count(), dict[str, int]()
    entries: list[tuple[int, TrajectoryRef, str]] = []
    for number, trajectories in enumerate(trajectories_by_group):
        rewards, baseline = rewards_by_group[number], baselines[number]
        own = _own_advantages(trajectories) if config.rewards_count else []
        dead = (not any(own) if own else zero_variance(rewards, baseline)) or not config.rewards_count
        alone = len(rewards) == 1 and baseline is None
        why = "single_reward" if alone else "equal_rewards" if rewards else "no_reward"
        why = "zero_advantages" if own else why
        if dead and not any(teacher or trajectory.hint for trajectory in trajectories):
            batch.groups_skipped[why] += 1
            batch.skip_trajectories(trajectories, why)
            continue
        for trajectory, advantage in zip(trajectories, own or advantages_by_group[number], strict=True):
            if dead and not (teacher or trajectory.hint):
                batch.skip_trajectories([trajectory], why)
                continue
            place = next(places)
            if trajectory.run is not None:
                place = place_of.setdefault(trajectory.run, place)
            for completion_id in trajectory.completions:
                if reason := reasons.get(completion_id, "missing"):
                    batch.skip(trajectory.id, completion_id, reason)
                    continue
                completion = completions[completion_id]
                sample = Sample(completion, advantage, _trained_mask(completion), number, place, trajectory.id)
                if not any(sample.trained_mask):
                    batch.skip(trajectory.id, completion_id, "forced")
                    continue
                if not dead:
                    entries.append((number, trajectory, completion_id))
                result = _add_teaching(sample, trajectory.hint, config, teaching)
                batch.tokens_unscored += sum(sample.trained_mask)
                if isinstance(result, Sample):
                    batch.samples.append(result)
                    batch.tokens_unscored -= sum(result.trained_mask)
                else:
                    batch.skip(trajectory.id, completion_id, result)
    _check_rewards(entries, completions)


def _check_rewards(entries: Iterable[tuple[int, TrajectoryRef, str]], completions: Mapping[str, Completion]) -> None:
    """Raises TrainingError for a completion that is to be made likelier and less likely at once.

    Args:
        entries: Number of the group, trajectory and completion, for each completion that is trained by a reward.
        completions: By id, as the ledger has them.
    """
    reference_of: dict[tuple[str, str], TrajectoryRef] = {}
    trajectory_of: dict[tuple[int, frozenset[str]], TrajectoryRef] = {}
    for group, reference, completion in entries:
        run = reference.trajectory
        if conflict := _conflict(reference_of.setdefault((run, completion), reference), reference):
            what, values = conflict
            raise TrainingError(
                f"the trajectory {run!r} gives its completion {completion!r} two {what}s, {values}: give it one. "
                "No version was made"
            )
        texts = frozenset(text for text in reference.completions if text in completions)
        twin = trajectory_of.setdefault((group, texts), reference)
        if conflict := _conflict(twin, reference):
            what, values = conflict
            raise TrainingError(
                f"the trajectories {twin.id!r} and {reference.id!r} are made of the same completions and have the "
                f"{what}s {values}: send each run once, with one {what}. No version was made"
            )


def _conflict(first: TrajectoryRef, second: TrajectoryRef) -> tuple[str, str] | None:
    """What differs between two references, "reward" or "advantage", and its two values; None: neither."""
    for name in ("reward", "advantage"):
        values = [getattr(reference, name) for reference in (first, second)]
        if values[0] != values[1]:
            return name, " and ".join("none" if value is None else f"{value:g}" for value in values)
    return None


def _countable(groups: Sequence[GroupRef], evaluations: Set[str], batch: Batch) -> list[GroupRef]:
    """The groups without trajectories that evaluate a version, and with each completion of a trajectory once. What is
    left out is counted in the batch."""
    keys_so_far = set[tuple[str, str, float | None, float | None]]()
    countable: dict[int, GroupRef] = {}
    for number in sorted(range(len(groups)), key=lambda number: _is_flat(groups[number])):  # they would take runs away
        group, wholes = groups[number], set[tuple[frozenset[str], float | None, float | None]]()
        references: list[TrajectoryRef] = []
        for reference in group.trajectories:
            texts = list(dict.fromkeys(reference.completions))
            keys = [
                (reference.trajectory, text, reference.reward, reference.advantage) for text in texts or [reference.id]
            ]
            whole = (frozenset(texts), reference.reward, reference.advantage)
            new = [text for key, text in zip(keys, texts, strict=False) if key not in keys_so_far]
            if not evaluations.isdisjoint(texts):
                reason = "evaluation"
            elif keys_so_far.issuperset(keys) or (texts and whole in wholes):
                reason = "repeated"
            else:
                keys_so_far.update(keys)
                wholes.add(whole)
                references.append(reference.model_copy(update={"completions": new}))
                continue
            batch.trajectories_skipped[reason] += 1
            batch.skip_trajectories([reference], reason)
        countable[number] = group.model_copy(update={"trajectories": references})
    return [countable[number] for number in range(len(groups))]


def _own_advantages(trajectories: Iterable[TrajectoryRef]) -> list[float]:
    """The advantages that the request has for some trajectories; empty: their rewards count (`wrong_reward`)."""
    return [trajectory.advantage for trajectory in trajectories if trajectory.advantage is not None]


def _is_flat(group: GroupRef) -> bool:
    """Whether a group's rewards, or its own advantages, teach nothing."""
    if own := _own_advantages([ref for ref in group.trajectories if ref.reward is not None]):
        return not any(own)
    return zero_variance([ref.reward for ref in group.trajectories if ref.reward is not None], group.baseline)


def _add_teaching(sample: Sample, hint: str | None, config: GRPOConfig, teaching: Teaching) -> Sample | str:
    """A sample with its hinted prompt or its teacher's scores; or why it is skipped. Tokens without a score are not
    trained."""
    if hint is not None:
        prompt = teaching.prompts.get(hint, {}).get(sample.completion.id)
        return "hint_not_rendered" if prompt is None else dataclasses.replace(sample, hinted_prompt=prompt)
    if config.distill is None or config.distill.url is None:
        return sample
    if sample.completion.sampling.temperature != 1.0:
        return "teacher_temperature"
    scores = np.array(teaching.scores.get(sample.completion.id) or [None], dtype=np.float64)
    if len(scores) != len(sample.trained_mask):
        return "teacher_missing"
    scores[~np.isfinite(scores)] = np.nan
    mask = tuple((np.array(sample.trained_mask) & ~np.isnan(scores)).tolist())
    if not any(mask):
        return "teacher_missing"
    return dataclasses.replace(sample, trained_mask=mask, teacher_logprobs=scores.tolist())


def _sampler(
    trajectory: TrajectoryRef, completions: Mapping[str, Completion], policy: str, server_id: str | None
) -> int | None:
    """The version of the policy that sampled a whole trajectory; None: several did, or others, or it is not known."""
    parts = [completions[completion_id] for completion_id in trajectory.completions if completion_id in completions]
    if server_id is not None and any(completion.server_id != server_id for completion in parts):
        return None
    samplers = {(completion.policy, completion.version) for completion in parts}
    name, version = samplers.pop() if len(samplers) == 1 else (None, None)
    return version if name == policy else None


def _why_skipped(completion: Completion, config: GRPOConfig, policy: str, version: int, origin: Origin) -> str | None:
    """Why a completion cannot be trained, or None."""
    if origin.server_id is not None and completion.server_id != origin.server_id:
        return "other_server"
    if completion.policy != policy:
        return "other_policy"
    if completion.base_model != origin.base_model:
        return "other_base_model"
    if completion.tokenizer != origin.tokenizer:
        return "other_tokenizer"
    if completion.status != CompletionStatus.complete:
        return str(completion.status)
    if completion.untrainable:
        return "incomplete"
    if completion.hint is not None:
        return "hinted"
    if completion.greedy:
        return "greedy"
    if not completion.token_ids:
        return "empty"
    if config.max_staleness is not None and version - (completion.version or 0) > config.max_staleness:
        return "stale"
    if config.mask_truncated_completions and completion.truncated:
        return "truncated"
    return None


def _trained_mask(completion: Completion) -> tuple[bool, ...]:
    """Under a grammar, a token that was sampled with log-probability 0 was forced: there was nothing to choose."""
    if "grammar" not in completion.constrained:
        return (True,) * len(completion.token_ids)
    return tuple((np.array(completion.logprobs) < 0.0).tolist())


def advantages(
    groups: Sequence[Sequence[float]],
    scale_rewards: Literal["group", "batch", "none"],
    baselines: Sequence[float | None] | None = None,
    group_baseline: Literal["mean", "leave_one_out"] = "mean",
) -> list[list[float]]:
    """(reward − baseline) / scale for every trajectory of every group, in the same shape, as in TRL's GRPOTrainer.

    A group of one has nothing to compare with and gets 0, as does a group whose rewards are all equal, unless a
    baseline is given.

    Args:
        groups: Rewards, group by group.
        scale_rewards: The scale is the standard deviation (n − 1) of the group or of the whole batch, plus `EPSILON`;
            or 1. A group with a given baseline is not scaled by its own deviation.
        baselines: What the rewards of each group are compared with; None, for all or for one: see `group_baseline`.
        group_baseline: The group's mean, or for each reward the mean of the others in its group (RLOO).
    """
    flat = np.array([reward for group in groups for reward in group], dtype=np.float64)
    batch_std = float(flat.std(ddof=1)) if len(flat) > 1 else 0.0
    result: list[list[float]] = []
    for group, baseline in zip(groups, baselines or [None] * len(groups), strict=True):
        if zero_variance(group, baseline):
            result.append([0.0] * len(group))
            continue
        rewards = np.array(group, dtype=np.float64)
        values = rewards - (rewards.mean() if baseline is None else baseline)
        if group_baseline == "leave_one_out" and baseline is None and len(rewards) > 1:
            values *= len(rewards) / (len(rewards) - 1)  # r − mean of the others
        if scale_rewards == "group" and baseline is None:
            values = values / (rewards.std(ddof=1) + EPSILON)
        elif scale_rewards == "batch":
            values = values / (batch_std + EPSILON)
        result.append(values.tolist())
    return result


def zero_variance(group: Sequence[float], baseline: float | None = None) -> bool:
    """Whether all advantages of a group are 0: its rewards equal the baseline; without one, they equal each other."""
    if baseline is not None:
        return all(abs(reward - baseline) < 1e-9 for reward in group)
    return len(group) < 2 or max(group) - min(group) < 1e-9
