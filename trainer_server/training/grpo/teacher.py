"""What a teacher says of the tokens that the policy sampled: another version, the base model, or the hinted policy.

Teachers on this base model are computed here, on the rows that the step trains: a teacher with the policy's own weights
gives the very same log-probs, so that its gradient is 0. Another vLLM's scores were asked for before the step began.

Shapes: F sampled tokens of the batch. Log-probabilities are in nats.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from trainer_server.training.grpo.batch import Sample
from trainer_server.training.grpo.old_logprobs import old_logprobs, recompute_logprobs
from trainer_server.training.grpo.tokens import Tokens
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import Row
from trainer_server.training.ranks import Ranks
from trainer_server.wire import GRPOConfig, TrainingError

WithTeacher = Callable[[], AbstractContextManager[str]]
"""Puts the teacher's weights in place for the length of a `with`; gives the teacher's name."""


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
    spans = [slice(start, start + len(sample.completion.token_ids)) for start, sample in _starts(tokens, samples)]
    name: str | None = None
    if config.distill is not None and config.distill.teacher is not None:
        if (name := config.distill.url) is None:
            with with_teacher() as name:
                teacher_logp_F, _ = old_logprobs(model, rows, tokens, ranks)
        for span, sample in zip(spans, samples, strict=True):
            if sample.teacher_logprobs is not None:
                teacher_logp_F[span] = torch.tensor(sample.teacher_logprobs)
    hinted = [(span, sample) for span, sample in zip(spans, samples, strict=True) if sample.hinted_prompt is not None]
    if hinted:
        scored = recompute_logprobs(model, [_reading_the_hint(sample) for _, sample in hinted], config, ranks)
        for (span, _), sample in zip(hinted, scored, strict=True):
            teacher_logp_F[span] = torch.tensor(sample.old_logprobs)
    taught = ~teacher_logp_F.isnan() & tokens.trained_F
    if not teacher_logp_F[taught].isfinite().all() or (name is not None and not taught[tokens.trained_F].all()):
        raise TrainingError(
            f"the teacher {name or 'that reads the hint'} gives no finite log-prob: no version was made"
        )
    return teacher_logp_F, {
        **({"teacher": name} if name is not None else {}),
        "teacher_tokens": int(taught.sum()),
        "completions_hinted": len(hinted),
    }


def _starts(tokens: Tokens, samples: Sequence[Sample]) -> list[tuple[int, Sample]]:
    return list(zip(tokens.start_S.tolist(), samples, strict=True))


def _reading_the_hint(sample: Sample) -> Sample:
    """The sample with its hinted prompt: the same tokens were sampled after it."""
    completion = sample.completion.model_copy(update={"prompt_token_ids": list(sample.hinted_prompt or ())})
    return dataclasses.replace(sample, completion=completion)
