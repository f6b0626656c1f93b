"""The objective of the GRPO family, as TRL's `GRPOTrainer._compute_loss` has it on padded rows. Pure.

Shapes: R read-outs (sampled tokens that are trained), S completions. All read-outs of a completion are in one call.
Log-probabilities are in nats.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from trainer_server.training.grpo.loss import loss_named
from trainer_server.wire import GRPOConfig


@dataclass(slots=True)
class Readouts:
    """What the loss needs of each read-out besides its log-probability.

    old_logp_R: log-probs that ratios are taken against; NaN: the current ones (ratio 1).
    sampled_logp_R: what the sampler said; NaN: unknown, importance weight 1.
    advantage_R: of the trajectory that the read-out belongs to.
    token_weight_R: weight of the token in the update's loss, see `Loss`.
    completion_R: index of the completion, 0 ≤ · < S.
    active_R: 1, or 0 where the policy gradient is left out (`top_entropy_quantile`); None: 1 everywhere.
    entropy_scale: 1 / active tokens of the update: the entropy term is a mean over them.
    reference_logp_R: of the reference version, when beta > 0.
    teacher_logp_R: of the teacher, NaN where a read-out has none; None: there is no teacher.
    """

    old_logp_R: torch.Tensor
    sampled_logp_R: torch.Tensor
    advantage_R: torch.Tensor
    token_weight_R: torch.Tensor
    completion_R: torch.Tensor
    active_R: torch.Tensor | None = None
    entropy_scale: float = 0.0
    reference_logp_R: torch.Tensor | None = None
    teacher_logp_R: torch.Tensor | None = None

    def to(self, device: torch.device) -> Readouts:
        """The same where the log-probabilities are computed, without waiting for what is computed there."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if torch.is_tensor(value):
                values[name] = value.to(device, non_blocking=True)
        return Readouts(**values)


@dataclass(slots=True)
class LossResult:
    """loss: scalar, to be summed over micro-batches. The rest is for metrics, detached.

    low_R, high_R: 1 where a lower or an upper bound of the ratio is active. importance_weight_R: 0 where a mask leaves
    the read-out out. teacher_gap_R: log π − log teacher; NaN where a read-out has no teacher.
    """

    loss: torch.Tensor
    ratio_R: torch.Tensor
    low_R: torch.Tensor
    high_R: torch.Tensor
    importance_weight_R: torch.Tensor
    kl_R: torch.Tensor | None
    teacher_gap_R: torch.Tensor | None


def grpo_loss(
    logp_R: torch.Tensor, readouts: Readouts, config: GRPOConfig, entropy_R: torch.Tensor | None = None
) -> LossResult:
    """−Σ token_weight · importance_weight · gain, and what `beta` and `entropy_coef` add to it.

    With beta > 0, plus beta times the k3 estimate of KL(policy ‖ reference), exp(d) − d − 1 with d = reference_logp −
    logp (http://joschu.net/blog/kl-approx.html). With `entropy_coef`, less that times the mean entropy.

    A teacher changes the advantage of each token: less `weight` · (logp − teacher_logp), without a gradient. The
    current log-probs count, not the old ones: at every update the gradient is that of KL(policy ‖ teacher), and a
    policy that has reached its teacher stays there.

    Args:
        logp_R: Log-probabilities of the sampled tokens under the current weights, with a gradient.
        readouts: The rest of what is known of the read-outs.
        config: Of the step.
        entropy_R: Entropies at the read-outs, with a gradient; needed with `entropy_coef`.
    """
    old_R = torch.where(readouts.old_logp_R.isnan(), logp_R.detach(), readouts.old_logp_R)
    log_ratio_R = logp_R - old_R
    if config.importance_sampling_level == "sequence":
        log_ratio_R = _by_completion(log_ratio_R, readouts.completion_R, mean=True)
    ratio_R = log_ratio_R.exp()
    advantage_R, teacher_gap_R = readouts.advantage_R, None
    if readouts.teacher_logp_R is not None:
        teacher_gap_R = logp_R.detach() - readouts.teacher_logp_R
        weight = 1.0 if config.distill is None else config.distill.weight
        advantage_R = advantage_R - weight * teacher_gap_R.masked_fill(teacher_gap_R.isnan(), 0.0)
    gain = loss_named(config.loss_type).gain(ratio_R, logp_R, advantage_R, config)
    importance_weight_R = _importance_weight(logp_R.detach(), old_R, readouts, config)
    token_loss_R = -gain.gain_R * importance_weight_R
    if readouts.active_R is not None:
        token_loss_R = token_loss_R * readouts.active_R
    kl_R = None
    if config.beta > 0:
        if readouts.reference_logp_R is None:
            raise ValueError("beta > 0 needs reference_logp_R")
        log_gap_R = readouts.reference_logp_R - logp_R
        kl_R = log_gap_R.exp() - log_gap_R - 1
        token_loss_R = token_loss_R + config.beta * (kl_R * ratio_R if config.use_bias_correction_kl else kl_R)
    loss = (token_loss_R * readouts.token_weight_R.to(token_loss_R.dtype)).sum()
    if config.entropy_coef:
        if entropy_R is None:
            raise ValueError("entropy_coef needs entropy_R")
        active_entropy_R = entropy_R if readouts.active_R is None else entropy_R * readouts.active_R
        loss = loss - config.entropy_coef * readouts.entropy_scale * active_entropy_R.sum()
    nowhere_R = torch.zeros_like(ratio_R, dtype=torch.bool)
    return LossResult(
        loss=loss,
        ratio_R=ratio_R.detach(),
        low_R=(nowhere_R if gain.low_R is None else gain.low_R).float(),
        high_R=(nowhere_R if gain.high_R is None else gain.high_R).float(),
        importance_weight_R=importance_weight_R,
        kl_R=None if kl_R is None else kl_R.detach(),
        teacher_gap_R=teacher_gap_R,
    )


def _importance_weight(
    logp_R: torch.Tensor, old_R: torch.Tensor, readouts: Readouts, config: GRPOConfig
) -> torch.Tensor:
    """π_old/π_sampler of each token or completion, truncated or masked at its bounds (truncated importance sampling).

    0 for completions with a negative advantage that the policy has left behind (`off_policy_mask_threshold`).
    """
    importance_weight_R = torch.ones_like(old_R)
    cap, floor, mode = config.importance_sampling_cap, config.importance_sampling_floor, config.importance_sampling_mode
    if cap is not None or floor is not None:
        log_weight_R = torch.where(
            readouts.sampled_logp_R.isnan(), torch.zeros_like(old_R), old_R - readouts.sampled_logp_R
        )
        if mode.startswith("sequence"):
            log_weight_R = _by_completion(log_weight_R, readouts.completion_R)
        weight_R = log_weight_R.exp()
        bounded_R = weight_R.clamp(floor, cap)
        truncate = mode.endswith("truncate")
        importance_weight_R = bounded_R if truncate else torch.where(bounded_R == weight_R, weight_R, 0.0)
    if config.off_policy_mask_threshold is not None:  # arXiv:2512.02556
        sampled_R = torch.where(readouts.sampled_logp_R.isnan(), old_R, readouts.sampled_logp_R)
        fallen_R = _by_completion(sampled_R - logp_R, readouts.completion_R, mean=True)
        kept_R = (readouts.advantage_R >= 0) | (fallen_R <= config.off_policy_mask_threshold)
        importance_weight_R = importance_weight_R * kept_R
    return importance_weight_R


def _by_completion(values_R: torch.Tensor, completion_R: torch.Tensor, *, mean: bool = False) -> torch.Tensor:
    """Every read-out gets the sum, or the mean, over its completion."""
    _, index_R = completion_R.unique(return_inverse=True)
    size = int(index_R.max()) + 1 if len(index_R) else 0
    sums_S = values_R.new_zeros(size).index_add(0, index_R, values_R)
    if mean:
        sums_S = sums_S / values_R.new_zeros(size).index_add(0, index_R, torch.ones_like(values_R))
    return sums_S[index_R]
