"""The sampled tokens of a batch, and its minibatches: rows of a packed prefix tree, and what tokens weigh in the loss.

Tokens lie in flat arrays, one sample after another: there is no Python loop per token.
Shapes: S samples of the whole batch, F sampled tokens of the whole batch, R read-outs of a row.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from trainer_server.training.grpo.batch import Sample
from trainer_server.training.grpo.loss import by_trajectory, loss_named
from trainer_server.training.grpo.objective import Readouts
from trainer_server.training.model.routing import Experts, sampled_experts
from trainer_server.training.model.tree import Packing, Row, pack_for
from trainer_server.wire import GRPOConfig, TrainingError


@dataclass(frozen=True, slots=True)
class Tokens:
    """The sampled tokens of a batch. Log-probabilities are fp32, in nats.

    start_S: index, 0 ≤ · < F, of the first token of a sample.
    length_S: how many tokens of a sample are trained.
    temperature_S: of the sampler.
    trained_F: whether a token is trained: not those that a grammar forced.
    old_logp_F: under the policy that ratios are taken against; NaN: the version that is trained, not computed yet.
    sampled_logp_F: of the sampler; NaN under a constraint, where it is not the policy's, unless it was recomputed for
        an importance weight (`proximal_policy="step"`).
    expected_logp_F: of the sampler, where the version that is trained should give the same; NaN elsewhere.
    active_F: 1, or 0 for tokens whose policy gradient is left out (`top_entropy_quantile`).
    reference_logp_F: under the reference version; with a KL penalty only.
    teacher_logp_F: under the teacher, NaN where a token has none; with a teacher only.
    experts_S: that the sampler chose for the tokens of prompt and answer but the last; None: it gave none.
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
    experts_S: tuple[Experts | None, ...] = ()

    @classmethod
    def of(
        cls, samples: Sequence[Sample], version: int, proximal_policy: Literal["sampler", "step"] = "sampler"
    ) -> Tokens:
        """The tokens of these samples, in their order.

        Args:
            samples: Of a batch.
            version: The one that is trained.
            proximal_policy: What ratios of completions of older versions are taken against (`GRPOConfig`).
        """
        lengths_S = torch.tensor([len(sample.completion.token_ids) for sample in samples], dtype=torch.long)

        def concatenate(parts: list[np.ndarray], dtype: torch.dtype) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(parts)).to(dtype) if parts else torch.empty(0, dtype=dtype)

        def by_token(values: list[bool]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.bool).repeat_interleave(lengths_S)

        trained_F = concatenate([np.array(sample.trained_mask) for sample in samples], torch.bool)
        logp_F = concatenate([np.array(sample.completion.logprobs) for sample in samples], torch.float32)
        sampled_logp_F = logp_F.masked_fill(by_token([sample.constrained for sample in samples]), torch.nan)
        current_F = by_token([sample.completion.version == version for sample in samples])
        in_step = proximal_policy == "step"
        old_logp_F = torch.full_like(logp_F, torch.nan) if in_step else sampled_logp_F.masked_fill(current_F, torch.nan)
        start_S = lengths_S.cumsum(0) - lengths_S
        for start, sample in zip(start_S.tolist(), samples, strict=True):
            if sample.old_logprobs is not None:
                of_sampler_F = sampled_logp_F if in_step else old_logp_F
                of_sampler_F[start : start + len(sample.old_logprobs)] = torch.tensor(sample.old_logprobs)
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
            experts_S=tuple(sampled_experts(sample.completion) for sample in samples),
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

    def without_experts(self) -> Tokens:
        """The same tokens for another model than the one that sampled them: its routers choose."""
        return dataclasses.replace(self, experts_S=())

    def experts(self, row: Row) -> Experts | None:
        """The experts of each token of a row, as its samplers chose them; None: no sampler gave any.

        Where completions share a token, those of the first count: an engine that keeps its prefixes computes it once,
        but other versions of the policy, or another engine, may have chosen others.
        """
        return self._experts(row)[0]

    def replay_metrics(self, rows: Sequence[Row]) -> dict[str, float]:
        """The metrics of the sampler's experts in some rows; none where no sampler gave any."""
        experts_of_rows = [self._experts(row) for row in rows]
        if all(experts_TLK is None for experts_TLK, _ in experts_of_rows):
            return {}
        chosen = sum(
            int((experts_TLK[:, 0, 0] >= 0).sum()) for experts_TLK, _ in experts_of_rows if experts_TLK is not None
        )
        return {
            "experts_replayed": chosen / sum(len(row.tokens_T) for row in rows),
            "experts_ambiguous": sum(differing for _, differing in experts_of_rows),
        }

    def _experts(self, row: Row) -> tuple[Experts | None, int]:
        """See `experts`; and how often a later completion has other experts for a token that it shares."""
        experts_TLK: Experts | None = None
        differing = 0
        for source in np.unique(row.source_R) if any(each is not None for each in self.experts_S) else ():
            if (own_NLK := self.experts_S[source]) is None:
                continue
            last = row.place_R[row.source_R == source].max()
            (run,) = (run for run in row.runs if run.start <= last < run.stop)
            path_N = run.path_L[: row.depth_T[last] + 1]
            if experts_TLK is None:
                experts_TLK = np.full((len(row.tokens_T), *own_NLK.shape[1:]), -1, dtype=np.int64)
            if own_NLK.shape[1:] != experts_TLK.shape[1:]:
                raise TrainingError(
                    f"completions of one row have experts of different models: {own_NLK.shape[1:]} and "
                    f"{experts_TLK.shape[1:]} layers and experts a token"
                )
            free_N = experts_TLK[path_N, 0, 0] < 0
            earlier, later = np.sort(experts_TLK[path_N[~free_N]]), np.sort(own_NLK[~free_N])
            differing += int((earlier != later).any(axis=(1, 2)).sum())
            experts_TLK[path_N[free_N]] = own_NLK[free_N]
        return experts_TLK, differing

    def readouts(self, row: Row, token_weight_S: torch.Tensor, entropy_scale: float) -> tuple[torch.Tensor, Readouts]:
        """Which read-outs of a row are trained (their indices, 0 ≤ · < R), and what the loss needs of them.

        token_weight_S, entropy_scale: see `Minibatch`.
        """
        index_R, source_R = self.index_R(row), torch.from_numpy(row.source_R)
        (place,) = self.trained_F[index_R].nonzero(as_tuple=True)
        index, source = index_R[place], source_R[place]
        return place, Readouts(
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
        budget: int,
        ranks: int,
        row_end: int | None,
    ) -> Minibatch:
        """index_S: which samples of the batch belong to it. share, budget, ranks, row_end: of `pack_samples`."""
        packing = pack_samples([samples[index] for index in index_S], budget, share=share, ranks=ranks, row_end=row_end)
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


def minibatches(
    samples: Sequence[Sample], count: int, rng: random.Random, *, whole_trajectories: bool = False
) -> list[list[int]]:
    """Indices of samples in `count` minibatches of about the same number of sampled tokens.

    None is empty: fewer samples make fewer minibatches. Groups stay whole while there are at least `count` of them:
    their samples share a prefix.

    Args:
        samples: Of the batch.
        count: How many minibatches.
        rng: Source of randomness.
        whole_trajectories: Whether the samples of a trajectory stay together where groups do not, or where it has
            parts in several groups. Fewer trajectories make fewer minibatches.
    """
    by_group = len({sample.group for sample in samples}) >= count
    if whole_trajectories:
        in_parts = len({(sample.trajectory, sample.group) for sample in samples})
        by_group = by_group and in_parts == len({sample.trajectory for sample in samples})
    by_unit: dict[int, list[int]] = {}
    for index, sample in enumerate(samples):
        together = sample.group if by_group else sample.trajectory if whole_trajectories else index
        by_unit.setdefault(together, []).append(index)
    parts: list[list[int]] = [[] for _ in range(min(count, len(by_unit)))]
    sizes = [0] * len(parts)
    for unit in rng.sample(list(by_unit.values()), len(by_unit)):
        smallest = sizes.index(min(sizes))
        parts[smallest] += unit
        sizes[smallest] += sum(len(samples[index].completion.token_ids) for index in unit)
    return [sorted(part) for part in parts]
