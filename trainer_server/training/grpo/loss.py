"""The GRPO family on flat read-outs, as TRL's `GRPOTrainer._compute_loss` has it on padded rows. Pure.

Shapes: R read-outs (sampled tokens that are trained), S completions. A completion's read-outs are all in one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer_server.wire import GRPOConfig


@dataclass(slots=True)
class Readouts:
    """What the loss needs of each read-out besides its log-probability.

    old_logp_R: log-probs that ratios are taken against; NaN: the current ones (ratio 1).
    sampled_logp_R: what the sampler said; NaN: unknown, no correction.
    share_R: weight of the token in the update's loss, see `shares`.
    completion_R: index of the completion, 0 ≤ · < S.
    weight_R: 1, or 0 where the policy gradient is left out (`top_entropy_quantile`); None: 1 everywhere.
    bonus: 1 / tokens of the update whose weight is 1: the entropy bonus is a mean over them.
    reference_logp_R: of the reference version, when beta > 0.
    """

    old_logp_R: torch.Tensor
    sampled_logp_R: torch.Tensor
    advantage_R: torch.Tensor
    share_R: torch.Tensor
    completion_R: torch.Tensor
    weight_R: torch.Tensor | None = None
    bonus: float = 0.0
    reference_logp_R: torch.Tensor | None = None


@dataclass(slots=True)
class LossResult:
    """loss: scalar, to be summed over micro-batches. The rest is for metrics, detached.

    low_R, high_R: whether a lower or an upper bound of the ratio is active. correction_R: 0 where a mask leaves out.
    """

    loss: torch.Tensor
    ratio_R: torch.Tensor
    low_R: torch.Tensor
    high_R: torch.Tensor
    correction_R: torch.Tensor
    kl_R: torch.Tensor | None


def shares(lengths_S: torch.Tensor, config: GRPOConfig) -> torch.Tensor:
    """Weight of one token of each completion, so that micro-batches add up to the loss of the whole batch.

    lengths_S: trained tokens of every completion of the batch. grpo, sapo: 1/(S·length); dapo, bnpo, cispo: 1/(all
    tokens); dr_grpo: 1/(S·max_completion_length).
    """
    lengths = lengths_S.to(torch.float64).clamp(min=1.0)
    if config.loss_type in ("grpo", "sapo"):
        return 1.0 / (lengths * len(lengths))
    if config.loss_type == "dr_grpo":
        return torch.full_like(lengths, 1.0 / (len(lengths) * config.max_completion_length))
    return torch.full_like(lengths, 1.0 / float(max(lengths_S.sum().item(), 1)))


def grpo_loss(
    logp_R: torch.Tensor, given: Readouts, config: GRPOConfig, entropy_R: torch.Tensor | None = None
) -> LossResult:
    """Policy-gradient loss on clipped, capped or softened ratios, corrected for what lies between sampler and trainer.

    With beta > 0, plus beta times the k3 estimate of KL(policy ‖ reference); with `entropy_coef`, less that times the
    mean entropy, for which entropy_R has a gradient.
    """
    old_R = torch.where(given.old_logp_R.isnan(), logp_R.detach(), given.old_logp_R)
    log_ratio_R = logp_R - old_R
    if config.importance_sampling_level == "sequence":
        log_ratio_R = _by_completion(log_ratio_R, given.completion_R, mean=True)
    ratio_R = log_ratio_R.exp()
    gain_R, low_R, high_R = _gain(ratio_R, logp_R, given.advantage_R, config)
    correction_R = _correction(logp_R.detach(), old_R, given, config)
    token_loss_R = -gain_R * correction_R
    if given.weight_R is not None:
        token_loss_R = token_loss_R * given.weight_R
    kl_R = None
    if config.beta > 0:
        if given.reference_logp_R is None:
            raise ValueError("beta > 0 needs reference_logp_R")
        log_gap_R = given.reference_logp_R - logp_R
        kl_R = log_gap_R.exp() - log_gap_R - 1
        token_loss_R = token_loss_R + config.beta * (kl_R * ratio_R if config.use_bias_correction_kl else kl_R)
    loss = (token_loss_R * given.share_R.to(token_loss_R.dtype)).sum()
    if config.entropy_coef:
        if entropy_R is None:
            raise ValueError("entropy_coef needs entropy_R")
        active_R = entropy_R if given.weight_R is None else entropy_R * given.weight_R
        loss = loss - config.entropy_coef * given.bonus * active_R.sum()
    return LossResult(
        loss, ratio_R.detach(), low_R.float(), high_R.float(), correction_R, None if kl_R is None else kl_R.detach()
    )


def _correction(logp_R: torch.Tensor, old_R: torch.Tensor, given: Readouts, config: GRPOConfig) -> torch.Tensor:
    """Weight of each token for the sampler's not being the policy that ratios are taken against, and 0 for sequences
    with a negative advantage that the policy has left behind (`off_policy_mask_threshold`)."""
    correction_R = torch.ones_like(old_R)
    cap, floor, mode = config.importance_sampling_cap, config.importance_sampling_floor, config.importance_sampling_mode
    if cap is not None or floor is not None:
        gap_R = torch.where(given.sampled_logp_R.isnan(), torch.zeros_like(old_R), old_R - given.sampled_logp_R)
        if mode.startswith("sequence"):
            gap_R = _by_completion(gap_R, given.completion_R)
        weight_R = gap_R.exp()
        bounded_R = weight_R.clamp(floor, cap)
        correction_R = bounded_R if mode.endswith("truncate") else torch.where(bounded_R == weight_R, weight_R, 0.0)
    if config.off_policy_mask_threshold is not None:  # arXiv:2512.02556
        said_R = torch.where(given.sampled_logp_R.isnan(), old_R, given.sampled_logp_R)
        away_R = _by_completion(said_R - logp_R, given.completion_R, mean=True)
        kept_R = (given.advantage_R >= 0) | (away_R <= config.off_policy_mask_threshold)
        correction_R = correction_R * kept_R
    return correction_R


def _gain(
    ratio_R: torch.Tensor, logp_R: torch.Tensor, advantage_R: torch.Tensor, config: GRPOConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What is maximised at each token, and whether its lower or upper bound is active there."""
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    none_R = torch.zeros_like(ratio_R, dtype=torch.bool)
    if config.loss_type == "cispo":  # arXiv:2506.13585: every token keeps its gradient
        return ratio_R.clamp(max=high).detach() * advantage_R * logp_R, none_R, (ratio_R > high) & (advantage_R > 0)
    if config.loss_type == "sapo":  # arXiv:2511.20347
        sharp_R = torch.where(advantage_R > 0, config.sapo_temperature_pos, config.sapo_temperature_neg)
        soft_R = torch.sigmoid(sharp_R * (ratio_R - 1)) * 4 / sharp_R
        return soft_R * advantage_R, none_R, none_R
    clipped_R = ratio_R.clamp(1 - config.epsilon, 1 + high)
    bounded_R = ratio_R if config.delta is None else ratio_R.clamp(max=config.delta)
    gain_R = torch.minimum(bounded_R * advantage_R, clipped_R * advantage_R)
    low_R, high_R = ratio_R < 1 - config.epsilon, ratio_R > 1 + high
    return gain_R, low_R & (advantage_R < 0), high_R & (advantage_R > 0)


def _by_completion(values_R: torch.Tensor, completion_R: torch.Tensor, *, mean: bool = False) -> torch.Tensor:
    """Every read-out gets the sum, or the mean, over its completion."""
    _, index_R = completion_R.unique(return_inverse=True)
    size = int(index_R.max()) + 1 if len(index_R) else 0
    sums = values_R.new_zeros(size).index_add(0, index_R, values_R)
    if mean:
        sums = sums / values_R.new_zeros(size).index_add(0, index_R, torch.ones_like(values_R))
    return sums[index_R]
