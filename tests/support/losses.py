"""A loss that is defined outside the packages, as docs/contributing/loss.md tells: REINFORCE, summed over one."""

from __future__ import annotations

import torch

from trainer_server.training.grpo.loss import Loss, SurrogateObjective
from trainer_server.wire import GRPOConfig


def by_completion(lengths_S: torch.Tensor, config: GRPOConfig) -> torch.Tensor:
    """1 / S: the sum over the tokens of a completion, then the mean over completions."""
    return torch.full(lengths_S.shape, 1.0 / len(lengths_S), dtype=torch.float64)


def plain(
    ratio_R: torch.Tensor, logp_R: torch.Tensor, advantage_R: torch.Tensor, config: GRPOConfig
) -> SurrogateObjective:
    """A · logp: no ratio, no clip."""
    return SurrogateObjective(advantage_R * logp_R)


REINFORCE = Loss(token_weights=by_completion, gain=plain)
