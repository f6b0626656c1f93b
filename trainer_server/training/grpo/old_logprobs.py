"""Log-probabilities that are computed before the weights move: under the version that is trained, and under others.

Every function here returns what it computed and changes nothing. Shapes: F sampled tokens of the batch.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from trainer_server.training.grpo.batch import Batch, Sample
from trainer_server.training.grpo.minibatch import pack_samples
from trainer_server.training.grpo.tokens import Tokens
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import Row
from trainer_server.training.ranks import Ranks
from trainer_server.wire import GRPOConfig, TrainingError

COMPARED_COMPLETIONS = 16
"""How many completions of an older version are compared with the sampler where none is of the newest version."""

WithVersion = Callable[[int], AbstractContextManager[bool]]
"""Puts another version's weights in place for the length of a `with`; gives False when that version is gone."""


def trainable_samples(
    model: PolicyModel, batch: Batch, config: GRPOConfig, with_version: WithVersion, ranks: Ranks
) -> tuple[list[Sample], Counter[str]]:
    """The samples of a batch that can be trained, and how many cannot, by reason.

    Left out are samples that are longer than `token_budget`, with their hint ("too_long"), and samples whose old
    log-probs have to be recomputed under a version that is gone ("version_gone"). Samples of older versions that were
    sampled under a constraint come with recomputed `old_logprobs`.
    """
    kept: list[Sample] = []
    skipped: Counter[str] = Counter()
    constrained: dict[int, list[Sample]] = {}
    for sample in batch.samples:
        completion = sample.completion
        longest = max(len(completion.prompt_token_ids), len(sample.hinted_prompt or ()))
        if longest + len(completion.token_ids) - 1 > config.token_budget:
            skipped["too_long"] += 1
        elif sample.constrained and completion.version != batch.version:
            constrained.setdefault(completion.version or 0, []).append(sample)
        else:
            kept.append(sample)
    for version, samples in constrained.items():
        with with_version(version) as available:
            if available:
                kept += recompute_logprobs(model, samples, config, ranks)
            else:
                skipped["version_gone"] += len(samples)
    return kept, skipped


def compared_with_sampler(
    model: PolicyModel, samples: Sequence[Sample], config: GRPOConfig, with_version: WithVersion, ranks: Ranks
) -> torch.Tensor:
    """The trainer's − the sampler's log-probs of some completions of an older version, under that version.

    Where a batch has no completion of the newest version, this tells whether trainer and engine agree. Empty where
    nothing can tell: all completions were sampled under constraints, or by versions that are gone.
    """
    free = [sample for sample in samples if not sample.constrained]
    for version in sorted({sample.completion.version or 0 for sample in free}, reverse=True):
        with with_version(version) as available:
            if available:
                chosen = [sample for sample in free if sample.completion.version == version][:COMPARED_COMPLETIONS]
                return torch.cat(
                    [
                        torch.tensor(sample.old_logprobs) - torch.tensor(sample.completion.logprobs)
                        for sample in recompute_logprobs(model, chosen, config, ranks)
                    ]
                )
    return torch.empty(0)


def reference_logprobs(
    model: PolicyModel,
    rows: Sequence[Row],
    tokens: Tokens,
    config: GRPOConfig,
    with_version: WithVersion,
    ranks: Ranks,
) -> torch.Tensor:
    """Log-probs (F,) under `config.reference_version`. Raises TrainingError when there is no such version."""
    with with_version(config.reference_version) as available:
        if not available:
            raise TrainingError(
                f"reference_version={config.reference_version}: the policy has no such version any more"
            )
        reference_logp_F, _ = old_logprobs(model, rows, tokens, ranks)
        return reference_logp_F


@torch.no_grad()
def old_logprobs(
    model: PolicyModel, rows: Sequence[Row], tokens: Tokens, ranks: Ranks
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies (F,) of all sampled tokens under the weights that are in place; 0 for those in no row.

    The rows are divided among the ranks; all ranks get all values.
    """
    logp_F, entropy_F = torch.zeros(len(tokens.trained_F)), torch.zeros(len(tokens.trained_F))
    with ranks.computing():
        for row, counts in ranks.shard_rows(rows):
            logp_R, entropy_R = model.logprobs(row, tokens.temperature_R(row))
            if counts:
                index_R = tokens.index_R(row)
                logp_F[index_R], entropy_F[index_R] = logp_R.cpu(), entropy_R.cpu()
    ranks.all_reduce(logp_F, entropy_F)
    return logp_F, entropy_F


def recompute_logprobs(model: PolicyModel, samples: Sequence[Sample], config: GRPOConfig, ranks: Ranks) -> list[Sample]:
    """Samples with the log-probs of their tokens under the weights that are in place."""
    rows = pack_samples(samples, config.token_budget, share=model.share, ranks=ranks.count).rows
    logp_F, _ = old_logprobs(model, rows, Tokens.of(samples, -1), ranks)
    by_sample = logp_F.split([len(sample.completion.token_ids) for sample in samples])
    return [
        dataclasses.replace(sample, old_logprobs=logp.tolist()) for sample, logp in zip(samples, by_sample, strict=True)
    ]
