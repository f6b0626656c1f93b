"""What one optimizer update trains: rows of a packed prefix tree, and what its tokens weigh in the loss.

Shapes: S samples of the whole batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainer_server.training.grpo.batch import Sample
from trainer_server.training.grpo.loss import shares
from trainer_server.training.grpo.tokens import Tokens
from trainer_server.training.model.tree import Packing, Row, pack
from trainer_server.wire import GRPOConfig


@dataclass(slots=True)
class Part:
    """rows: of `packing`, but their `source_R` counts in the whole batch. share_S, bonus: see `loss`."""

    packing: Packing
    rows: list[Row]
    share_S: torch.Tensor
    bonus: float

    @classmethod
    def of(
        cls, samples: Sequence[Sample], index_S: Sequence[int], tokens: Tokens, config: GRPOConfig, *, share: bool,
        ranks: int,
    ) -> Part:  # fmt: skip
        """index_S: which samples of the batch. share, ranks: see `packed`."""
        packing = packed([samples[index] for index in index_S], config.token_budget, share=share, ranks=ranks)
        places = np.array(index_S)
        rows = [dataclasses.replace(row, source_R=places[row.source_R]) for row in packing.rows]
        length = tokens.length_S[places]
        share_S = torch.zeros(len(samples), dtype=torch.float64)
        share_S[places] = shares(length, config)
        return cls(packing, rows, share_S, 1 / max(1, int(length.sum())))


def packed(samples: Sequence[Sample], budget: int, *, share: bool, ranks: int = 1) -> Packing:
    """Rows of at most `budget` tokens. share: see `pack`. ranks: where the rows are fewer than the processes that could
    compute them, they are divided into that many, as equal as can be."""
    prompts = [np.array(sample.completion.prompt_token_ids) for sample in samples]
    answers = [np.array(sample.completion.token_ids) for sample in samples]
    packing = pack(prompts, answers, budget=budget, share=share)
    if len(packing.rows) >= min(ranks, len(samples)):
        return packing
    low = max(len(prompt) + len(answer) - 1 for prompt, answer in zip(prompts, answers, strict=True))
    high = max(low, max(len(row.tokens_T) for row in packing.rows))
    while low < high:  # the smallest budget that needs no more rows than that
        middle = (low + high) // 2
        if len(pack(prompts, answers, budget=middle, share=share).rows) <= ranks:
            high = middle
        else:
            low = middle + 1
    return pack(prompts, answers, budget=high, share=share)
