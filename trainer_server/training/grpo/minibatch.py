"""What one optimizer update trains: rows of a packed prefix tree, and what its tokens weigh in the loss.

Shapes: S samples of the whole batch, F sampled tokens of the whole batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainer_server.training.grpo.batch import Sample
from trainer_server.training.grpo.loss import by_trajectory, loss_named
from trainer_server.training.grpo.tokens import Tokens
from trainer_server.training.model.tree import Packing, Row, pack_for
from trainer_server.wire import GRPOConfig


@dataclass(frozen=True, slots=True)
class Minibatch:
    """packing: of the minibatch's samples. rows: those of `packing`, but their `source_R` counts in the whole batch.
    token_weight_S: weight in the loss of each token of a sample; 0 for samples of other minibatches."""

    packing: Packing
    rows: list[Row]
    token_weight_S: torch.Tensor

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        index_S: Sequence[int],
        tokens: Tokens,
        config: GRPOConfig,
        *,
        share: bool,
        ranks: int,
        row_end: int | None,
    ) -> Minibatch:
        """index_S: which samples of the batch belong to it. share, ranks, row_end: of `pack_samples`."""
        packing = pack_samples(
            [samples[index] for index in index_S], config.token_budget, share=share, ranks=ranks, row_end=row_end
        )
        places = np.array(index_S)
        rows = [dataclasses.replace(row, source_R=places[row.source_R]) for row in packing.rows]
        token_weight_S = torch.zeros(len(samples), dtype=torch.float64)
        lengths = tokens.length_S[places]
        if config.loss_aggregation == "trajectory":
            token_weight_S[places] = by_trajectory(lengths, torch.tensor([samples[at].trajectory for at in index_S]))
        else:
            token_weight_S[places] = loss_named(config.loss_type).token_weights(lengths, config)
        return cls(packing, rows, token_weight_S)

    def entropy_scale(self, tokens: Tokens) -> float:
        """1 / active tokens of the minibatch: the entropy term of its loss is a mean over them."""
        return 1 / max(1.0, float(tokens.active_F[tokens.trained_index(self.rows)].sum()))


def highest_entropy(
    minibatches: Sequence[Minibatch], tokens: Tokens, entropy_F: torch.Tensor, quantile: float
) -> torch.Tensor:
    """1 for the share `quantile` of each minibatch's trained tokens that have the highest entropy, 0 for its others;
    (F,), fp32. arXiv:2506.01939."""
    active_F = torch.ones_like(entropy_F)
    for minibatch in minibatches:
        index = tokens.trained_index(minibatch.rows)
        least = entropy_F[index].quantile(1 - quantile)
        active_F[index] = (entropy_F[index] >= least).float()
    return active_F


def pack_samples(
    samples: Sequence[Sample], budget: int, *, share: bool, ranks: int = 1, row_end: int | None = None
) -> Packing:
    """Rows of at most `budget` tokens.

    Args:
        samples: What is packed, prompts and answers.
        budget: Tokens of a row at most.
        share: Whether samples may share a row, see `pack`.
        ranks: Number of processes that divide the rows.
        row_end: Tokens of a row above which its layers are computed twice, see `pack`.
    """
    prompts = [np.array(sample.completion.prompt_token_ids) for sample in samples]
    answers = [np.array(sample.completion.token_ids) for sample in samples]
    return pack_for(ranks, prompts, answers, budget=budget, share=share, row_end=row_end)
