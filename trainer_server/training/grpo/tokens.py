"""What a step knows of every sampled token of its batch, in flat arrays: no Python loop per token.

Shapes: S samples, F sampled tokens of all of them one after another, R read-outs of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainer_server.training.grpo.batch import Sample
from trainer_server.training.grpo.loss import Readouts
from trainer_server.training.model.tree import Row


@dataclass(slots=True)
class Tokens:
    """start_S: where the tokens of a sample begin. length_S: how many of them are trained. trained_F: whether a token
    is: not those that a grammar forced.

    old_logp_F: under the policy that ratios are taken against; NaN: the version that is trained, not computed yet.
    sampled_logp_F: what the sampler said; NaN under a constraint, where it is not the policy's.
    expected_logp_F: what the sampler said where the version that is trained should say the same; NaN elsewhere.
    weight_F: 1, or 0 for tokens whose policy gradient is left out. reference_logp_F: with a KL penalty.
    """

    start_S: torch.Tensor
    length_S: torch.Tensor
    temperature_S: torch.Tensor
    advantage_S: torch.Tensor
    trained_F: torch.Tensor
    old_logp_F: torch.Tensor
    sampled_logp_F: torch.Tensor
    expected_logp_F: torch.Tensor
    weight_F: torch.Tensor
    reference_logp_F: torch.Tensor | None = None

    @classmethod
    def of(cls, samples: Sequence[Sample], version: int) -> Tokens:
        """version: the one that is trained."""
        lengths = torch.tensor([len(one.completion.token_ids) for one in samples], dtype=torch.long)

        def flat(parts: list[np.ndarray], dtype: torch.dtype) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(parts)).to(dtype) if parts else torch.empty(0, dtype=dtype)

        def each(values: list[bool]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.bool).repeat_interleave(lengths)

        trained_F = flat([np.array(one.trained) for one in samples], torch.bool)
        said_F = flat([np.array(one.completion.logprobs) for one in samples], torch.float32)
        sampled_logp_F = said_F.masked_fill(each([one.constrained for one in samples]), torch.nan)
        current_F = each([one.completion.version == version for one in samples])
        old_logp_F = sampled_logp_F.masked_fill(current_F, torch.nan)
        start_S = lengths.cumsum(0) - lengths
        for start, sample in zip(start_S.tolist(), samples, strict=True):
            if sample.old is not None:
                old_logp_F[start : start + len(sample.old)] = torch.tensor(sample.old)
        index_F = torch.arange(len(samples)).repeat_interleave(lengths)
        return cls(
            start_S=start_S,
            length_S=torch.zeros(len(samples), dtype=torch.long).index_add(0, index_F, trained_F.long()),
            temperature_S=torch.tensor([one.completion.sampling.temperature for one in samples]),
            advantage_S=torch.tensor([one.advantage for one in samples], dtype=torch.float32),
            trained_F=trained_F,
            old_logp_F=old_logp_F,
            sampled_logp_F=sampled_logp_F,
            expected_logp_F=sampled_logp_F.masked_fill(~(current_F & trained_F), torch.nan),
            weight_F=torch.ones(len(trained_F)),
        )

    def of_row(self, row: Row) -> torch.Tensor:
        """Indices, 0 ≤ · < F, of a row's read-outs."""
        return self.start_S[torch.from_numpy(row.source_R)] + torch.from_numpy(row.offset_R)

    def temperature_R(self, row: Row) -> torch.Tensor:
        return self.temperature_S[torch.from_numpy(row.source_R)]

    def readouts(self, row: Row, share_S: torch.Tensor, bonus: float) -> tuple[torch.Tensor, Readouts]:
        """Which read-outs of a row are trained, and what the loss needs of them. share_S, bonus: see `loss`."""
        index_R, source_R = self.of_row(row), torch.from_numpy(row.source_R)
        (keep_R,) = self.trained_F[index_R].nonzero(as_tuple=True)
        index, source = index_R[keep_R], source_R[keep_R]
        return keep_R, Readouts(
            old_logp_R=self.old_logp_F[index],
            sampled_logp_R=self.sampled_logp_F[index],
            advantage_R=self.advantage_S[source],
            share_R=share_S[source],
            completion_R=source,
            weight_R=self.weight_F[index],
            bonus=bonus,
            reference_logp_R=None if self.reference_logp_F is None else self.reference_logp_F[index],
        )
