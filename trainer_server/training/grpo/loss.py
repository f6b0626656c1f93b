"""The losses that a step can have, by `loss_type`: one entry in `LOSSES` each, and nothing else to touch.

A loss says how tokens are weighed and what is maximised at each of them. The rest is the same for all of them and lies
in `objective.py`: ratios, importance weights, the KL penalty, the entropy term. Pure functions of tensors.

Shapes: R read-outs (sampled tokens that are trained), S completions of an update. Log-probabilities are in nats.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from trainer_server.common.plugins import loss_place
from trainer_server.wire import ConfigError, GRPOConfig, TrainingError


@dataclass(frozen=True, slots=True)
class SurrogateObjective:
    """What is maximised at each read-out.

    gain_R: differentiable by logp_R.
    low_R, high_R: where a lower or an upper bound is active (bool); for metrics. None: nowhere.
    """

    gain_R: torch.Tensor
    low_R: torch.Tensor | None = None
    high_R: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """One `loss_type`. The loss of an update is −Σ token_weight · gain over its trained tokens.

    token_weights: (lengths_S, config) → weight_S. lengths_S (int) are the trained tokens of every completion of the
        update; weight_S (float64) is the weight of each token of a completion. It depends on nothing else, so the
        losses of micro-batches add up to the loss of the update. Not called with `loss_aggregation="trajectory"`, which
        has weights of its own (`by_trajectory`).
    gain: (ratio_R, logp_R, advantage_R, config) → SurrogateObjective. ratio_R is π/π_old by token, or by sequence with
        `importance_sampling_level="sequence"`. Both ratio_R and logp_R have gradients.
    """

    token_weights: Callable[[torch.Tensor, GRPOConfig], torch.Tensor]
    gain: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, GRPOConfig], SurrogateObjective]


def by_sequence(lengths_S: torch.Tensor, config: GRPOConfig) -> torch.Tensor:
    """1 / (S · length): the mean over the tokens of a completion, then over completions."""
    return 1.0 / (lengths_S.to(torch.float64).clamp(min=1.0) * len(lengths_S))


def by_token(lengths_S: torch.Tensor, config: GRPOConfig) -> torch.Tensor:
    """1 / (all tokens): the mean over the tokens of the update."""
    return torch.full(lengths_S.shape, 1.0 / max(int(lengths_S.sum()), 1), dtype=torch.float64)


def by_constant_length(lengths_S: torch.Tensor, config: GRPOConfig) -> torch.Tensor:
    """1 / (S · max_completion_length), arXiv:2503.20783: long completions are not discounted."""
    return torch.full(lengths_S.shape, 1.0 / (len(lengths_S) * config.max_completion_length), dtype=torch.float64)


def by_trajectory(lengths_S: torch.Tensor, trajectory_S: torch.Tensor) -> torch.Tensor:
    """1 / (trajectories · tokens of the trajectory): the mean over all tokens of a trajectory, then over trajectories.
    Takes the place of a loss's own weights with `loss_aggregation="trajectory"`.

    Args:
        lengths_S: Trained tokens of every completion of an update.
        trajectory_S: The trajectory of each of them, as any number.
    """
    _, index_S = trajectory_S.unique(return_inverse=True)
    tokens_N = torch.zeros(int(index_S.max()) + 1, dtype=torch.float64).index_add(0, index_S, lengths_S.double())
    return 1.0 / (len(tokens_N) * tokens_N.clamp(min=1.0)[index_S])


def clipped(
    ratio_R: torch.Tensor, logp_R: torch.Tensor, advantage_R: torch.Tensor, config: GRPOConfig
) -> SurrogateObjective:
    """PPO's min(ratio · A, clip(ratio, 1 − ε, 1 + ε_high) · A), arXiv:1707.06347. The unclipped ratio is at most
    `delta`, arXiv:2505.07291."""
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    clipped_R = ratio_R.clamp(1 - config.epsilon, 1 + high)
    bounded_R = ratio_R if config.delta is None else ratio_R.clamp(max=config.delta)
    return SurrogateObjective(
        torch.minimum(bounded_R * advantage_R, clipped_R * advantage_R),
        (ratio_R < 1 - config.epsilon) & (advantage_R < 0),
        (ratio_R > 1 + high) & (advantage_R > 0),
    )


def capped(
    ratio_R: torch.Tensor, logp_R: torch.Tensor, advantage_R: torch.Tensor, config: GRPOConfig
) -> SurrogateObjective:
    """CISPO's min(ratio, ε_high) · A · logp, the ratio without a gradient, arXiv:2506.13585: every token keeps its
    gradient."""
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    return SurrogateObjective(
        ratio_R.clamp(max=high).detach() * advantage_R * logp_R, high_R=(ratio_R > high) & (advantage_R > 0)
    )


def softened(
    ratio_R: torch.Tensor, logp_R: torch.Tensor, advantage_R: torch.Tensor, config: GRPOConfig
) -> SurrogateObjective:
    """SAPO's 4/τ · sigmoid(τ · (ratio − 1)) · A, arXiv:2511.20347; τ by the sign of the advantage."""
    tau_R = torch.where(advantage_R > 0, config.sapo_temperature_pos, config.sapo_temperature_neg)
    return SurrogateObjective(torch.sigmoid(tau_R * (ratio_R - 1)) * 4 / tau_R * advantage_R)


def divergence_masked(
    ratio_R: torch.Tensor, logp_R: torch.Tensor, advantage_R: torch.Tensor, config: GRPOConfig
) -> SurrogateObjective:
    """DPPO's mask · ratio · A, arXiv:2602.04879. The mask leaves out a token whose probability has moved from that of
    the old policy, in the direction of its advantage, by more than `dppo_mask_high` up or `dppo_mask_low` down (binary
    total variation; by direction as in prime-rl). The ratio is at most `delta`."""
    logp, ratio = logp_R.detach(), ratio_R.detach()
    change_R = logp.exp() - (logp - ratio.log()).exp()
    high_R = (change_R > config.dppo_mask_high) & (advantage_R > 0)
    low_R = (change_R < -config.dppo_mask_low) & (advantage_R < 0)
    bounded_R = ratio_R if config.delta is None else ratio_R.clamp(max=config.delta)
    return SurrogateObjective((bounded_R * advantage_R).masked_fill(high_R | low_R, 0.0), low_R, high_R)


LOSSES: dict[str, Loss] = {
    "dppo": Loss(by_token, divergence_masked),
    "grpo": Loss(by_sequence, clipped),
    "dr_grpo": Loss(by_constant_length, clipped),
    "dapo": Loss(by_token, clipped),
    "bnpo": Loss(by_token, clipped),
    "cispo": Loss(by_token, capped),
    "sapo": Loss(by_sequence, softened),
}
"""By `loss_type`. GSPO is "grpo" with `importance_sampling_level="sequence"`. In a step, "bnpo" is "dapo": they differ
in TRL only where the micro-batches of one update are averaged apart."""


def loss_named(name: str) -> Loss:
    """The loss that is registered under a name. Raises TrainingError, with the names that are, for any other."""
    if name not in LOSSES:
        raise TrainingError(
            f"loss_type={name!r} is not known to this trainer, which knows {', '.join(LOSSES)}; "
            "`art-langgraph serve --loss NAME=MODULE:ATTRIBUTE` registers another"
        )
    return LOSSES[name]


def check_config(config: GRPOConfig) -> None:
    """Looks whether a step's loss is there, and has the settings that it needs. Raises TrainingError."""
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    if loss_named(config.loss_type).gain is capped and high < 1:
        raise TrainingError(
            f"epsilon_high={high}: loss_type={config.loss_type!r} caps the ratio itself there; give 1 or more"
        )


def register_loss(definition: str) -> None:
    """Puts a loss from another module into `LOSSES`.

    Args:
        definition: `NAME=MODULE:ATTRIBUTE`; the attribute is a `Loss`.

    Raises:
        ConfigError: The definition has another form, the name is taken, or there is no such loss.
    """
    name, module, attribute = loss_place(definition)
    if name in LOSSES:
        raise ConfigError(f"--loss {definition}: there is a loss named {name!r} already; choose another name")
    try:
        loss = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--loss {definition}: {error}. Is the module on PYTHONPATH?") from error
    if not isinstance(loss, Loss):
        raise ConfigError(
            f"--loss {definition}: {module}:{attribute} is a {type(loss).__name__}, not a "
            "trainer_server.training.grpo.loss.Loss"
        )
    LOSSES[name] = loss
