"""The loss on demonstrations that are not trained, over the course of a warm start, and the weights that had the least.

Shapes: R read-outs (tokens that have a loss) of a packed row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from trainer_server.jobs.demonstrations import Row
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.ranks import Ranks
from trainer_server.training.sft.batches import Paths
from trainer_server.wire import SFTConfig, TrainingError


class HeldOut:
    """Measures, and keeps a copy of the best weights.

    Args:
        model: What is measured.
        rows: What it is measured on.
        config: Of the warm start.
        ranks: The processes that measure together. All get the same losses.
    """

    def __init__(self, model: PolicyModel, rows: Sequence[Row], config: SFTConfig, ranks: Ranks) -> None:
        self._model, self._ranks = model, ranks
        self._rows = Paths.of(rows).pack(config.token_budget, share=model.share, ranks=ranks.count).rows
        self._tokens = sum(row.loss_tokens for row in rows)
        self._best: list[torch.Tensor] = []
        self.losses: list[float] = []
        """Mean negative log-probability of the tokens that have a loss, in nats, by measurement."""
        self.updates: list[int] = []
        """How many updates the weights had, by measurement."""
        self.seconds: list[float] = []
        """What each measurement took."""

    @property
    def best(self) -> int:
        """Index of the first measurement with the least loss."""
        return self.losses.index(min(self.losses))

    @property
    def evaluations_without_gain(self) -> int:
        """Number of measurements since the least loss."""
        return len(self.losses) - 1 - self.best

    @torch.no_grad()
    def measure(self, updates: int) -> None:
        """Measures the weights that are in place.

        Args:
            updates: How many updates have made them.

        Raises:
            TrainingError: The loss is not finite.
        """
        start = time.monotonic()
        total = torch.zeros(1, dtype=torch.float64, device=self._model.device)
        with self._ranks.computing():
            for row, counts in self._ranks.shard_rows(self._rows):
                logp_R, _ = self._model.logprobs(row, torch.ones(len(row.target_R)))
                if counts:
                    total -= logp_R.double().sum()
        total = total.cpu()
        self._ranks.all_reduce(total)
        loss = total.item() / self._tokens
        if not math.isfinite(loss):
            raise TrainingError(f"the held-out loss is {loss} after {updates} updates: no version was made")
        self.losses.append(loss)
        self.updates.append(updates)
        if not self.evaluations_without_gain:
            self._best = [weight.detach().clone() for _, weight in self._model.parameters()]
        self.seconds.append(time.monotonic() - start)

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the weights with the least loss in place."""
        for (_, weight), best in zip(self._model.parameters(), self._best, strict=True):
            weight.copy_(best)
