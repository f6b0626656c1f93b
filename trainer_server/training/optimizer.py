"""The optimizer: its learning rate, its state between steps, and whether the weights that it made can be used.

The next step goes on from the state of optimizer and random generator, as safetensors and JSON. No pickle anywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainer_server.policies.store import OPTIMIZER
from trainer_server.process import faults
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import pack
from trainer_server.training.ranks import Ranks
from trainer_server.wire import GRPOConfig, SFTConfig, TrainingError

MOST_WEIGHT = 1e3
"""The largest entry of a LoRA's matrices, whatever its sign. AdamW moves an entry by about the learning rate in an
update, and those of a trained LoRA are below 1."""
MOST_FALL = 10.0
"""How far the mean log-prob of a text may fall in one job, in nats per token: e^10 is 22,000 times less likely."""
_TOKENS = 64
"""Tokens of the text that is looked at, half of them read out: a small part of what a step computes."""

Shape = Literal["constant", "constant_with_warmup", "linear", "cosine"]


def make_optimizer(model: PolicyModel, config: GRPOConfig | SFTConfig) -> torch.optim.AdamW:
    """AdamW over the LoRA's weights, without state."""
    weights = [weight for _, weight in model.parameters()]
    optimizer = torch.optim.AdamW(
        weights,
        fused=weights[0].is_cuda,  # a few kernels for all weights
        lr=config.lr,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
    )
    optimizer.register_step_pre_hook(lambda *_: faults.point("gradients"))
    optimizer.register_step_post_hook(lambda *_: faults.point("updated"))
    return optimizer


def learning_rate(peak: float, shape: Shape, update: float, *, warmup: int, total: int | None) -> float:
    """The learning rate of one update, a pure function, as transformers' schedulers of the same names have it.

    It rises over `warmup` updates. Then it stays, or falls to 0 at `total` along a line or half a cosine.

    Args:
        peak: The largest learning rate.
        shape: How it goes on after the warm-up.
        update: Number of the update, from 0. A fraction is between two updates.
        warmup: Number of updates until the peak.
        total: Number of updates until 0; None: it stays.
    """
    if update < warmup:
        return peak * update / warmup
    if shape in ("constant", "constant_with_warmup") or total is None:
        return peak
    share = min(1.0, (update - warmup) / max(1, total - warmup))
    return peak * (1 - share if shape == "linear" else (1 + math.cos(math.pi * share)) / 2)


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
                "step": torch.tensor(float(updates), device=weight.device),
                "exp_avg": tensors[f"exp_avg.{name}"].to(weight.device),
                "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(weight.device),
            }
    return None


def check_weights(model: PolicyModel, lr: float) -> None:
    """Raises TrainingError for weights that are not finite, or so large that no version may have them.

    Args:
        model: After its updates.
        lr: Their learning rate, for the message.
    """
    largest = max(float(weight.detach().abs().max()) for _, weight in model.parameters())
    if not largest <= MOST_WEIGHT:  # NaN is not
        raise TrainingError(f"the largest weight is {largest:g} after training: {_remedy(lr)}")


def _remedy(lr: float) -> str:
    return f"lr={lr:g} is too large. No version was made; try a smaller lr"


class UpdateCheck:
    """Compares the weights with those that were in place before the updates, by the log-probs of one text.

    All ranks make it and call it with the same weights and text.

    Args:
        model: Before its first update.
        ids: A text that is trained. Its last tokens are looked at.
        ranks: The processes that compute the step.

    Raises:
        TrainingError: With several ranks, for the errors of any, as `verify`.
    """

    def __init__(self, model: PolicyModel, ids: Sequence[int], ranks: Ranks) -> None:
        self._model, self._ranks = model, ranks
        tail = np.array(ids[-_TOKENS:], dtype=np.int64)
        middle = max(1, len(tail) // 2)
        (self._row,) = pack([tail[:middle]], [tail[middle:]], budget=_TOKENS, share=model.share).rows
        self._before = self._mean_logprob()

    def verify(self, lr: float) -> None:
        """Raises TrainingError as `check_weights`, and where the text became too unlikely.

        Args:
            lr: The learning rate of the updates, for the message.
        """
        with self._ranks.share_errors():
            check_weights(self._model, lr)
        after = self._mean_logprob()
        with self._ranks.share_errors():
            if not after >= self._before - MOST_FALL:
                fall = f"from {self._before:.3g} to {after:.3g} nats per token"
                raise TrainingError(f"the mean log-prob of a text fell {fall}: {_remedy(lr)}")

    def _mean_logprob(self) -> float:
        """Of the text's second half. With gradients, for which a GPU has compiled its kernels anyway."""
        with self._ranks.computing():
            logp_R, _ = self._model.logprobs(self._row, torch.ones(len(self._row.target_R)))
        return float(logp_R.detach().mean())
