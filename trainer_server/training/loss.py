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
    sampled_logp_R: what the sampler said; NaN: no correction (constrained sampling, or old_logp is the sampler's own).
    reference_logp_R: of the reference version, when beta > 0.
    share_R: weight of the token in the batch's loss, see `shares`.
    completion_R: index of the completion, 0 ≤ · < S.
    """

    old_logp_R: torch.Tensor
    sampled_logp_R: torch.Tensor
    advantage_R: torch.Tensor
    share_R: torch.Tensor
    completion_R: torch.Tensor
    reference_logp_R: torch.Tensor | None = None


@dataclass(slots=True)
class LossResult:
    """loss: scalar, to be summed over micro-batches. The rest is for metrics, detached."""

    loss: torch.Tensor
    ratio_R: torch.Tensor
    clipped_R: torch.Tensor
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


def grpo_loss(logp_R: torch.Tensor, given: Readouts, config: GRPOConfig) -> LossResult:
    """Policy-gradient loss on clipped, capped or softened ratios.

    With beta > 0, plus beta times the k3 estimate of KL(policy ‖ reference).
    """
    old_R = torch.where(given.old_logp_R.isnan(), logp_R.detach(), given.old_logp_R)
    log_ratio_R = logp_R - old_R
    if config.importance_sampling_level == "sequence":
        log_ratio_R = _mean_by_completion(log_ratio_R, given.completion_R)
    ratio_R = log_ratio_R.exp()
    gain_R, lost_R = _gain(ratio_R, logp_R, given.advantage_R, config)
    token_loss_R = -gain_R
    correction_R = torch.ones_like(old_R)
    if config.importance_sampling_cap is not None:
        gap_R = torch.where(given.sampled_logp_R.isnan(), torch.zeros_like(old_R), old_R - given.sampled_logp_R)
        correction_R = gap_R.exp().clamp(max=config.importance_sampling_cap)
        token_loss_R = token_loss_R * correction_R
    kl_R = None
    if config.beta > 0:
        if given.reference_logp_R is None:
            raise ValueError("beta > 0 needs reference_logp_R")
        log_gap_R = given.reference_logp_R - logp_R
        kl_R = log_gap_R.exp() - log_gap_R - 1
        token_loss_R = token_loss_R + config.beta * kl_R
    return LossResult(
        (token_loss_R * given.share_R.to(token_loss_R.dtype)).sum(),
        ratio_R.detach(),
        lost_R.float(),
        correction_R.detach(),
        None if kl_R is None else kl_R.detach(),
    )


def _gain(
    ratio_R: torch.Tensor, logp_R: torch.Tensor, advantage_R: torch.Tensor, config: GRPOConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is maximised at each token, and whether its clip or cap is active there."""
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    if config.loss_type == "cispo":  # arXiv:2506.13585: every token keeps its gradient
        return ratio_R.clamp(max=high).detach() * advantage_R * logp_R, (ratio_R > high) & (advantage_R > 0)
    if config.loss_type == "sapo":  # arXiv:2511.20347
        sharp_R = torch.where(advantage_R > 0, config.sapo_temperature_pos, config.sapo_temperature_neg)
        soft_R = torch.sigmoid(sharp_R * (ratio_R - 1)) * 4 / sharp_R
        return soft_R * advantage_R, torch.zeros_like(ratio_R, dtype=torch.bool)
    clipped_R = ratio_R.clamp(1 - config.epsilon, 1 + high)
    bounded_R = ratio_R if config.delta is None else ratio_R.clamp(max=config.delta)
    lost_R = ((ratio_R < 1 - config.epsilon) & (advantage_R < 0)) | ((ratio_R > 1 + high) & (advantage_R > 0))
    return torch.minimum(bounded_R * advantage_R, clipped_R * advantage_R), lost_R


def _mean_by_completion(values_R: torch.Tensor, completion_R: torch.Tensor) -> torch.Tensor:
    """Every read-out gets the mean over its completion."""
    _, index_R = completion_R.unique(return_inverse=True)
    size = int(index_R.max()) + 1
    sums = values_R.new_zeros(size).index_add(0, index_R, values_R)
    counts = values_R.new_zeros(size).index_add(0, index_R, torch.ones_like(values_R))
    return (sums / counts)[index_R]
