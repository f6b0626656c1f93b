"""Log-probabilities that are computed before the weights move: under the version that is trained, under others, and
under a teacher.

Teachers on this base model are computed on the rows that the step trains: a teacher with the policy's own weights gives
the very same log-probs, so that its gradient is 0. Another vLLM scored the tokens before the step began.

Every function here returns what it computed and changes nothing. Shapes: F sampled tokens of the batch.
Log-probabilities are in nats.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from trainer_server.training.grpo.batch import Batch, Sample
from trainer_server.training.grpo.minibatch import Tokens, pack_samples
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import Row
from trainer_server.training.ranks import Ranks
from trainer_server.wire import GRPOConfig, TrainingError

COMPARED_COMPLETIONS = 16
"""How many completions of an older version are compared with the sampler where none is of the newest version."""

WithVersion = Callable[[int], AbstractContextManager[bool]]
"""Puts another version's weights in place for the length of a `with`; gives False when that version is gone."""


WithTeacher = Callable[[], AbstractContextManager[str]]
"""Puts the teacher's weights in place for the length of a `with`; gives the teacher's name."""


def trainable_samples(
    model: PolicyModel, batch: Batch, config: GRPOConfig, with_version: WithVersion, ranks: Ranks
) -> tuple[list[Sample], Counter[str]]:
    """The samples of a batch that can be trained, and how many cannot, by reason.

    Left out are samples that are longer than `token_budget`, with their hint ("too_long"), and samples whose old
    log-probs have to be recomputed under a version that is gone ("version_gone"). Samples of older versions that were
    sampled under a constraint come with recomputed `old_logprobs`.
    """
    trainable: list[Sample] = []
    reasons: Counter[str] = Counter()
    samples_by_version: dict[int, list[Sample]] = {}
    for sample in batch.samples:
        completion = sample.completion
        longest = max(len(completion.prompt_token_ids), len(sample.hinted_prompt or ()))
        if longest + len(completion.token_ids) - 1 > config.token_budget:
            reasons["too_long"] += 1
        elif sample.constrained and completion.version != batch.version:
            samples_by_version.setdefault(completion.version or 0, []).append(sample)
        else:
            trainable.append(sample)
    for version, samples in samples_by_version.items():
        with with_version(version) as available:
            if available:
                trainable += recompute_logprobs(model, samples, config, ranks)
            else:
                reasons["version_gone"] += len(samples)
    return trainable, reasons


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
                first = [sample for sample in free if sample.completion.version == version][:COMPARED_COMPLETIONS]
                return torch.cat(
                    [
                        torch.tensor(sample.old_logprobs) - torch.tensor(sample.completion.logprobs)
                        for sample in recompute_logprobs(model, first, config, ranks)
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
        reference_logp_F, _ = old_logprobs(model, rows, tokens.without_experts(), ranks)
        return reference_logp_F


@torch.no_grad()
def old_logprobs(
    model: PolicyModel, rows: Sequence[Row], tokens: Tokens, ranks: Ranks
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies (F,) of all sampled tokens under the weights that are in place; 0 for those in no row.

    The rows are divided among the ranks; all ranks get all values.
    """
    logp_F, entropy_F = (torch.zeros(len(tokens.trained_F), device=model.device) for _ in range(2))
    with ranks.computing():
        for row, counts in ranks.shard_rows(rows):
            logp_R, entropy_R = model.logprobs(row, tokens.temperature_R(row), experts_TLK=tokens.experts(row))
            if counts:
                index_R = tokens.index_R(row).to(model.device)
                logp_F[index_R], entropy_F[index_R] = logp_R, entropy_R
        logp_F, entropy_F = logp_F.cpu(), entropy_F.cpu()
    ranks.all_reduce(logp_F, entropy_F)
    return logp_F, entropy_F


def recompute_logprobs(model: PolicyModel, samples: Sequence[Sample], config: GRPOConfig, ranks: Ranks) -> list[Sample]:
    """Samples with the log-probs of their tokens under the weights that are in place."""
    rows = pack_samples(samples, config.token_budget, share=model.share, ranks=ranks.count).rows
    logp_F, _ = old_logprobs(model, rows, Tokens.of(samples, -1), ranks)
    parts = logp_F.split([len(sample.completion.token_ids) for sample in samples])
    return [
        dataclasses.replace(sample, old_logprobs=logp.tolist()) for sample, logp in zip(samples, parts, strict=True)
    ]


def teacher_logprobs(
    model: PolicyModel,
    samples: Sequence[Sample],
    rows: Sequence[Row],
    tokens: Tokens,
    config: GRPOConfig,
    with_teacher: WithTeacher,
    ranks: Ranks,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Log-probs (F,) of every sampled token under its teacher, NaN where it has none, and the step's metrics of them.

    A sample with a hinted prompt has the policy that is trained as its teacher, reading that prompt. All others have
    the teacher of `config.distill`, if there is one.

    Args:
        model: With the weights that are trained, which are in place again afterwards.
        samples: Of the batch.
        rows: That are trained.
        tokens: Of `samples`.
        config: Of the step.
        with_teacher: For a teacher that is a policy, or the base model.
        ranks: The processes that compute the step.

    Raises:
        TrainingError: A teacher on this base model gives no finite log-prob.
    """
    teacher_logp_F = torch.full(tokens.trained_F.shape, torch.nan)
    starts = zip(tokens.start_S.tolist(), samples, strict=True)
    spans = [slice(start, start + len(sample.completion.token_ids)) for start, sample in starts]
    name: str | None = None
    if config.distill is not None and config.distill.teacher is not None:
        if (name := config.distill.url) is None:
            with with_teacher() as name:
                teacher_logp_F, _ = old_logprobs(model, rows, tokens.without_experts(), ranks)
        for span, sample in zip(spans, samples, strict=True):
            if sample.teacher_logprobs is not None:
                teacher_logp_F[span] = torch.tensor(sample.teacher_logprobs)
    hints = [(span, sample) for span, sample in zip(spans, samples, strict=True) if sample.hinted_prompt is not None]
    if hints:
        teachers = recompute_logprobs(model, [_with_hinted_prompt(sample) for _, sample in hints], config, ranks)
        for (span, _), sample in zip(hints, teachers, strict=True):
            teacher_logp_F[span] = torch.tensor(sample.old_logprobs)
    taught_F = ~teacher_logp_F.isnan() & tokens.trained_F
    if not teacher_logp_F[taught_F].isfinite().all() or (name is not None and not taught_F[tokens.trained_F].all()):
        raise TrainingError(
            f"the teacher {name or 'that reads the hint'} gives no finite log-prob: no version was made"
        )
    return teacher_logp_F, {
        **({"teacher": name} if name is not None else {}),
        "teacher_tokens": int(taught_F.sum()),
        "completions_hinted": len(hints),
    }


def _with_hinted_prompt(sample: Sample) -> Sample:
    """The sample with its hinted prompt: the same tokens were sampled after it."""
    update = {"prompt_token_ids": list(sample.hinted_prompt or ()), "routed_experts": None}
    completion = sample.completion.model_copy(update=update)
    return dataclasses.replace(sample, completion=completion)
