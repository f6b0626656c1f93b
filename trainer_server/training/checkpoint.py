"""What the next step goes on from: optimizer and random state, as safetensors and JSON. No pickle anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainer_server.policies.store import OPTIMIZER
from trainer_server.process import faults
from trainer_server.training.model.policy import PolicyModel
from trainer_server.wire import GRPOConfig, SFTConfig


def make_optimizer(model: PolicyModel, config: GRPOConfig | SFTConfig) -> torch.optim.AdamW:
    """AdamW over the LoRA's weights, without state."""
    optimizer = torch.optim.AdamW(
        [weight for _, weight in model.parameters()],
        lr=config.lr,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
    )
    optimizer.register_step_pre_hook(lambda *_: faults.point("gradients"))
    optimizer.register_step_post_hook(lambda *_: faults.point("updated"))
    return optimizer


def save_state(directory: Path, model: PolicyModel, optimizer: torch.optim.AdamW | None) -> None:
    """Writes what the next step goes on from.

    optimizer.safetensors holds the first and second moments by weight, and torch's random state. trainer.json holds
    the number of updates.

    Args:
        directory: Of the version.
        model: Whose weights the optimizer trains.
        optimizer: None: the next step begins with a fresh one.
    """
    tensors = {"rng": torch.get_rng_state()}
    updates = 0
    if optimizer is not None:
        for name, weight in model.parameters():
            if state := optimizer.state.get(weight):  # none: no gradient ever reached it
                tensors[f"exp_avg.{name}"] = state["exp_avg"]
                tensors[f"exp_avg_sq.{name}"] = state["exp_avg_sq"]
                updates = int(state["step"].item())
    save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, directory / OPTIMIZER)
    (directory / "trainer.json").write_text(json.dumps({"updates": updates}))


def load_state(directory: Path, model: PolicyModel, optimizer: torch.optim.AdamW) -> str | None:
    """Restores what `save_state` wrote: on CPU, training continues bit for bit.

    Returns:
        Why the state could not be read, which leaves the optimizer without state; None: it was read.
    """
    try:
        tensors = load_file(directory / OPTIMIZER)
        updates = json.loads((directory / "trainer.json").read_text())["updates"]
    except (OSError, ValueError, SafetensorError) as error:
        return f"the optimizer state in {directory} cannot be read ({error}): the optimizer began anew"
    torch.set_rng_state(tensors["rng"])
    if not updates:
        return None
    for name, weight in model.parameters():
        if f"exp_avg.{name}" in tensors:
            optimizer.state[weight] = {
                "step": torch.tensor(float(updates)),
                "exp_avg": tensors[f"exp_avg.{name}"].to(weight.device),
                "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(weight.device),
            }
    return None
