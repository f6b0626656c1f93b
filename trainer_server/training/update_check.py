"""Whether the weights that updates made can be used: finite, of a sane size, and still a model of what was trained."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import pack
from trainer_server.training.ranks import Ranks
from trainer_server.wire import TrainingError

MOST_WEIGHT = 1e3
"""The largest entry of a LoRA's matrices, whatever its sign. AdamW moves an entry by about the learning rate in an
update, and those of a trained LoRA are below 1."""
MOST_FALL = 10.0
"""How far the mean log-prob of a text may fall in one job, in nats per token: e^10 is 22,000 times less likely."""
_TOKENS = 64
"""Tokens of the text that is looked at, half of them read out: a small part of what a step computes."""


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
