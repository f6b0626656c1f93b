"""Before the weights move: log-probabilities under the version that is trained, and under others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from trainer_server.training.grpo.batch import Batch, Sample
from trainer_server.training.grpo.minibatch import Part, packed
from trainer_server.training.grpo.tokens import Tokens
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import Row
from trainer_server.training.ranks import Ranks
from trainer_server.wire import GRPOConfig, TrainingError

LOOKED_BACK_AT = 16
"""Completions that tell whether trainer and engine agree, where no completion is of the newest version."""

Under = Callable[[int], AbstractContextManager[bool]]
"""Puts another version's weights in place for a while; gives False when that version is gone."""


def tokens_of(model: PolicyModel, batch: Batch, config: GRPOConfig, under: Under, ranks: Ranks) -> Tokens:
    """The batch's tokens with their old log-probs. Takes samples out of the batch whose prompts are too long, or whose
    old log-probs are needed of a version that is gone."""
    kept: list[Sample] = []
    stale: dict[int, list[Sample]] = {}
    for sample in batch.samples:
        one = sample.completion
        if len(one.prompt_token_ids) + len(one.token_ids) - 1 > config.token_budget:
            batch.completions_skipped["too_long"] += 1
        elif sample.constrained and one.version != batch.version:
            stale.setdefault(one.version or 0, []).append(sample)
        else:
            kept.append(sample)
    for version, samples in stale.items():
        with under(version) as there:
            if there:
                kept += _recomputed(model, samples, config, ranks)
            else:
                batch.completions_skipped["version_gone"] += len(samples)
    batch.samples = kept
    return Tokens.of(kept, batch.version)


def survey(model: PolicyModel, parts: Sequence[Part], tokens: Tokens, config: GRPOConfig, ranks: Ranks) -> torch.Tensor:
    """Fills in the log-probs that ratios are against, and which tokens have the highest entropy of their update.

    Returns the trainer's − the sampler's log-probs of all tokens, NaN where they need not agree.
    """
    logp_F, entropy_F = evaluate(model, [row for part in parts for row in part.rows], tokens, ranks)
    tokens.old_logp_F = torch.where(tokens.old_logp_F.isnan(), logp_F, tokens.old_logp_F)
    if config.top_entropy_quantile < 1:
        for part in parts:
            index_F = torch.cat([tokens.of_row(row) for row in part.rows])
            index_F = index_F[tokens.trained_F[index_F]]
            least = entropy_F[index_F].quantile(1 - config.top_entropy_quantile)
            tokens.weight_F[index_F] = (entropy_F[index_F] >= least).float()
            part.bonus = 1 / max(1.0, float(tokens.weight_F[index_F].sum()))
    return logp_F - tokens.expected_logp_F


def look_back(
    model: PolicyModel, samples: Sequence[Sample], config: GRPOConfig, under: Under, ranks: Ranks
) -> torch.Tensor:
    """The trainer's − the sampler's log-probs of some completions of an older version, under that version.

    Whether trainer and engine agree has to be told from them where a batch has none of the newest version. Empty where
    none can be told from: sampled under constraints, or by versions that are gone.
    """
    free = [sample for sample in samples if not sample.constrained]
    for version in sorted({sample.completion.version or 0 for sample in free}, reverse=True):
        with under(version) as there:
            if there:
                some = [sample for sample in free if sample.completion.version == version][:LOOKED_BACK_AT]
                found = _recomputed(model, some, config, ranks)
                return torch.cat([torch.tensor(one.old) - torch.tensor(one.completion.logprobs) for one in found])
    return torch.empty(0)


def refer(
    model: PolicyModel, parts: Sequence[Part], tokens: Tokens, config: GRPOConfig, under: Under, ranks: Ranks
) -> None:
    """Fills in the reference version's log-probs. Raises TrainingError when there is no such version."""
    with under(config.reference_version) as there:
        if not there:
            raise TrainingError(
                f"reference_version={config.reference_version}: the policy has no such version any more"
            )
        rows = [row for part in parts for row in part.rows]
        tokens.reference_logp_F, _ = evaluate(model, rows, tokens, ranks)


@torch.no_grad()
def evaluate(
    model: PolicyModel, rows: Sequence[Row], tokens: Tokens, ranks: Ranks
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies of all sampled tokens (F,), the rows divided among the ranks; 0 for those in no row."""
    logp_F, entropy_F = torch.zeros(len(tokens.trained_F)), torch.zeros(len(tokens.trained_F))
    for row, counts in ranks.mine(rows):
        logp_R, entropy_R = (one.cpu() for one in model.logprobs(row, tokens.temperature_R(row)))
        if counts:
            index_R = tokens.of_row(row)
            logp_F[index_R], entropy_F[index_R] = logp_R, entropy_R
    ranks.add(logp_F, entropy_F)
    return logp_F, entropy_F


def _recomputed(model: PolicyModel, samples: Sequence[Sample], config: GRPOConfig, ranks: Ranks) -> list[Sample]:
    """Samples with the log-probs of their tokens under the weights that are in place."""
    rows = packed(samples, config.token_budget, share=model.share, ranks=ranks.count).rows
    logp_F, _ = evaluate(model, rows, Tokens.of(samples, -1), ranks)
    parts = logp_F.split([len(sample.completion.token_ids) for sample in samples])
    return [dataclasses.replace(one, old=part.tolist()) for one, part in zip(samples, parts, strict=True)]
