"""What a step knows of every sampled token of its batch, in flat arrays: no Python loop per token.

Shapes: S samples, F sampled tokens of all samples one after another, R read-outs of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainer_server.training.grpo.batch import Sample
from trainer_server.training.grpo.objective import Readouts
from trainer_server.training.model.tree import Row


@dataclass(frozen=True, slots=True)
class Tokens:
    """The sampled tokens of a batch. Log-probabilities are fp32, in nats.

    start_S: index, 0 ≤ · < F, of the first token of a sample.
    length_S: how many tokens of a sample are trained.
    temperature_S: of the sampler.
    trained_F: whether a token is trained: not those that a grammar forced.
    old_logp_F: under the policy that ratios are taken against; NaN: the version that is trained, not computed yet.
    sampled_logp_F: what the sampler said; NaN under a constraint, where it is not the policy's.
    expected_logp_F: what the sampler said where the version that is trained should say the same; NaN elsewhere.
    active_F: 1, or 0 for tokens whose policy gradient is left out (`top_entropy_quantile`).
    reference_logp_F: under the reference version; with a KL penalty only.
    teacher_logp_F: under the teacher, NaN where a token has none; with a teacher only.
    """

    start_S: torch.Tensor
    length_S: torch.Tensor
    temperature_S: torch.Tensor
    advantage_S: torch.Tensor
    trained_F: torch.Tensor
    old_logp_F: torch.Tensor
    sampled_logp_F: torch.Tensor
    expected_logp_F: torch.Tensor
    active_F: torch.Tensor
    reference_logp_F: torch.Tensor | None = None
    teacher_logp_F: torch.Tensor | None = None

    @classmethod
    def of(cls, samples: Sequence[Sample], version: int) -> Tokens:
        """The tokens of these samples, in their order. version: the one that is trained."""
        lengths_S = torch.tensor([len(sample.completion.token_ids) for sample in samples], dtype=torch.long)

        def concatenate(parts: list[np.ndarray], dtype: torch.dtype) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(parts)).to(dtype) if parts else torch.empty(0, dtype=dtype)

        def by_token(values: list[bool]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.bool).repeat_interleave(lengths_S)

        trained_F = concatenate([np.array(sample.trained_mask) for sample in samples], torch.bool)
        given_F = concatenate([np.array(sample.completion.logprobs) for sample in samples], torch.float32)
        sampled_logp_F = given_F.masked_fill(by_token([sample.constrained for sample in samples]), torch.nan)
        current_F = by_token([sample.completion.version == version for sample in samples])
        old_logp_F = sampled_logp_F.masked_fill(current_F, torch.nan)
        start_S = lengths_S.cumsum(0) - lengths_S
        for start, sample in zip(start_S.tolist(), samples, strict=True):
            if sample.old_logprobs is not None:
                old_logp_F[start : start + len(sample.old_logprobs)] = torch.tensor(sample.old_logprobs)
        sample_F = torch.arange(len(samples)).repeat_interleave(lengths_S)
        return cls(
            start_S=start_S,
            length_S=torch.zeros(len(samples), dtype=torch.long).index_add(0, sample_F, trained_F.long()),
            temperature_S=torch.tensor([sample.completion.sampling.temperature for sample in samples]),
            advantage_S=torch.tensor([sample.advantage for sample in samples], dtype=torch.float32),
            trained_F=trained_F,
            old_logp_F=old_logp_F,
            sampled_logp_F=sampled_logp_F,
            expected_logp_F=sampled_logp_F.masked_fill(~(current_F & trained_F), torch.nan),
            active_F=torch.ones(len(trained_F)),
        )

    def index_R(self, row: Row) -> torch.Tensor:
        """Indices, 0 ≤ · < F, of a row's read-outs."""
        return self.start_S[torch.from_numpy(row.source_R)] + torch.from_numpy(row.offset_R)

    def trained_index(self, rows: Sequence[Row]) -> torch.Tensor:
        """Indices, 0 ≤ · < F, of the trained tokens of some rows."""
        index_F = torch.cat([self.index_R(row) for row in rows])
        return index_F[self.trained_F[index_F]]

    def temperature_R(self, row: Row) -> torch.Tensor:
        """The sampler's temperature at each read-out of a row."""
        return self.temperature_S[torch.from_numpy(row.source_R)]

    def readouts(self, row: Row, token_weight_S: torch.Tensor, entropy_scale: float) -> tuple[torch.Tensor, Readouts]:
        """Which read-outs of a row are trained (their indices, 0 ≤ · < R), and what the loss needs of them.

        token_weight_S, entropy_scale: see `Minibatch`.
        """
        index_R, source_R = self.index_R(row), torch.from_numpy(row.source_R)
        (kept,) = self.trained_F[index_R].nonzero(as_tuple=True)
        index, source = index_R[kept], source_R[kept]
        return kept, Readouts(
            old_logp_R=self.old_logp_F[index],
            sampled_logp_R=self.sampled_logp_F[index],
            advantage_R=self.advantage_S[source],
            token_weight_R=token_weight_S[source],
            completion_R=source,
            active_R=self.active_F[index],
            entropy_scale=entropy_scale,
            reference_logp_R=None if self.reference_logp_F is None else self.reference_logp_F[index],
            teacher_logp_R=None if self.teacher_logp_F is None else self.teacher_logp_F[index],
        )
