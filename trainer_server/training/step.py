"""One training step, top to bottom: batch → prefix tree → log-probs → loss → gradients → new weights, once or more.

Old log-probabilities. A completion of the version that is being trained has ratio 1 in the first update, whoever
computed its log-probs; what lies between vLLM's and the trainer's arithmetic is corrected by importance sampling. A
completion of an older version has the sampler's log-probs as its old ones. Completions sampled under a constraint have
log-probs that are not the policy's; theirs are recomputed under the version that sampled them.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trainer_server.training.batch import Batch, Sample, minibatches
from trainer_server.training.loss import grpo_loss, shares
from trainer_server.training.metrics import Seen, alarms
from trainer_server.training.policy import PolicyModel
from trainer_server.training.schedule import learning_rate
from trainer_server.training.tokens import Tokens
from trainer_server.training.tree import Packing, Row, pack
from trainer_server.wire import GRPOConfig, TrainingError

Under = Callable[[int], AbstractContextManager[bool]]
"""Puts another version's weights in place for a while; gives False when that version is gone."""

CHECKPOINT_ABOVE = 3072
"""Tokens of a row above which layers are computed twice: what they keep for the backward pass is about 2 MB a token for
a model of 135 M parameters, and grows with it."""


def optimise(
    model: PolicyModel, optimizer: torch.optim.AdamW, batch: Batch, config: GRPOConfig, under: Under
) -> dict[str, Any]:
    """Trains the weights of `batch.version` in place, `num_iterations` × `num_minibatches` updates; returns metrics.

    When nothing can be learnt, the metrics carry `skipped`, the reason, and nothing is changed. After a TrainingError
    the weights are those of no version.
    """
    started = time.monotonic()
    tokens = _tokens(model, batch, config, under)
    rng = random.Random(int(torch.randint(2**62, ()).item()))
    parts = [
        _Part.of(model, batch.samples, part, tokens, config)
        for part in minibatches(batch.samples, config.num_minibatches, rng)
    ]
    metrics = {**batch.metrics(), **_sizes(parts), "tokens_trained": int(tokens.trained_F.sum())}
    if not metrics["tokens_trained"]:
        return {**metrics, "skipped": _why(batch)}
    packed = time.monotonic()
    seen = Seen()
    several = config.num_iterations * len(parts) > 1
    if several or config.top_entropy_quantile < 1:
        _survey(model, parts, tokens, config, seen)
    if config.beta > 0:
        _refer(model, parts, tokens, config, under)
    surveyed = time.monotonic()

    losses, norms = [], []
    update = first = _updates(optimizer)
    for part in (part for _ in range(config.num_iterations) for part in rng.sample(parts, len(parts))):
        optimizer.zero_grad(set_to_none=True)
        losses.append(_backward(model, part, tokens, config, seen))
        norms.append(float(torch.nn.utils.clip_grad_norm_([w for _, w in model.parameters()], config.max_grad_norm)))
        if not (math.isfinite(losses[-1]) and math.isfinite(norms[-1])):
            raise TrainingError(f"the loss is {losses[-1]} and the gradient norm {norms[-1]}: no version was made")
        seen.check_gap(config)
        optimizer.param_groups[0]["lr"] = learning_rate(config, update)
        optimizer.step()
        update += 1

    return {
        **metrics,
        "loss": statistics.fmean(losses),
        "grad_norm": statistics.fmean(norms),
        "grad_norm_max": max(norms),
        **(summary := seen.summary()),
        "alarms": alarms(summary),
        "lr": optimizer.param_groups[0]["lr"],
        "updates": update - first,
        "updates_total": update,
        "seconds": {
            "pack": packed - started, "survey": surveyed - packed, "compute": time.monotonic() - surveyed,
        },
    }  # fmt: skip


@dataclass(slots=True)
class _Part:
    """What one update trains: rows whose `source_R` counts in the whole batch, and weights of tokens in its loss."""

    packing: Packing
    rows: list[Row]
    index_S: list[int]
    share_S: torch.Tensor
    bonus: float

    @classmethod
    def of(
        cls, model: PolicyModel, samples: Sequence[Sample], index_S: list[int], tokens: Tokens, config: GRPOConfig
    ) -> _Part:
        packing = _pack(model, [samples[index] for index in index_S], config)
        places = np.array(index_S)
        rows = [dataclasses.replace(row, source_R=places[row.source_R]) for row in packing.rows]
        length = tokens.length_S[index_S]
        share_S = torch.zeros(len(samples), dtype=torch.float64)
        share_S[index_S] = shares(length, config)
        return cls(packing, rows, index_S, share_S, 1 / max(1, int(length.sum())))


def _backward(model: PolicyModel, part: _Part, tokens: Tokens, config: GRPOConfig, seen: Seen) -> float:
    """Adds up the gradients of an update, row by row; returns its loss."""
    loss = 0.0
    for row in part.rows:
        model.gradient_checkpointing(len(row.tokens_T) > CHECKPOINT_ABOVE)
        logp_R, entropy_R = model.logprobs(row, tokens.temperature_R(row))
        keep_R, given = tokens.readouts(row, part.share_S, part.bonus)
        result = grpo_loss(logp_R[keep_R], given, config, entropy_R[keep_R])
        result.loss.backward()  # type: ignore[no-untyped-call]
        loss += result.loss.item()
        seen.add(result, entropy_R[keep_R])
        if not seen.surveyed:
            seen.compare(tokens.gap_R(row, logp_R)[keep_R])
    return loss


def _survey(model: PolicyModel, parts: list[_Part], tokens: Tokens, config: GRPOConfig, seen: Seen) -> None:
    """Before the weights move: the log-probs that ratios are against, and which tokens have the highest entropy."""
    entropy_F = torch.zeros_like(tokens.weight_F)
    for part in parts:
        for row in part.rows:
            with torch.no_grad():
                logp_R, entropy_R = (one.cpu() for one in model.logprobs(row, tokens.temperature_R(row)))
            index_R = tokens.of_row(row)
            seen.compare(tokens.gap_R(row, logp_R)[tokens.trained_F[index_R]])
            old_R = tokens.old_logp_F[index_R]
            tokens.old_logp_F[index_R] = torch.where(old_R.isnan(), logp_R, old_R)
            entropy_F[index_R] = entropy_R
        if config.top_entropy_quantile < 1:
            index_F = torch.cat([tokens.of_row(row) for row in part.rows])
            index_F = index_F[tokens.trained_F[index_F]]
            least = entropy_F[index_F].quantile(1 - config.top_entropy_quantile)
            tokens.weight_F[index_F] = (entropy_F[index_F] >= least).float()
            part.bonus = 1 / max(1.0, float(tokens.weight_F[index_F].sum()))
    seen.surveyed = True


def _refer(model: PolicyModel, parts: list[_Part], tokens: Tokens, config: GRPOConfig, under: Under) -> None:
    """The reference version's log-probs. Raises TrainingError when there is no such version."""
    tokens.reference_logp_F = torch.zeros_like(tokens.weight_F)
    with under(config.reference_version) as there, torch.no_grad():
        if not there:
            raise TrainingError(
                f"reference_version={config.reference_version}: the policy has no such version any more"
            )
        for row in (row for part in parts for row in part.rows):
            tokens.reference_logp_F[tokens.of_row(row)] = model.logprobs(row, tokens.temperature_R(row))[0].cpu()


def _tokens(model: PolicyModel, batch: Batch, config: GRPOConfig, under: Under) -> Tokens:
    """The batch's tokens with their old log-probs. Takes samples out of the batch whose prompts are too long, or whose
    old log-probs are needed of a version that is gone."""
    kept: list[Sample] = []
    stale: dict[int, list[int]] = {}
    for sample in batch.samples:
        one = sample.completion
        if len(one.prompt_token_ids) + len(one.token_ids) - 1 > config.token_budget:
            batch.completions_skipped["too_long"] += 1
            continue
        if sample.constrained and one.version != batch.version:
            stale.setdefault(one.version or 0, []).append(len(kept))
        kept.append(sample)
    gone: set[int] = set()
    for version, indices in stale.items():
        with under(version) as there:
            if there:
                for index, old in _recomputed(model, kept, indices, config):
                    kept[index] = dataclasses.replace(kept[index], old=old)
            else:
                batch.completions_skipped["version_gone"] += len(indices)
                gone.update(indices)
    batch.samples = [sample for index, sample in enumerate(kept) if index not in gone]
    return Tokens.of(batch.samples, batch.version)


def _recomputed(
    model: PolicyModel, samples: Sequence[Sample], indices: Sequence[int], config: GRPOConfig
) -> Iterator[tuple[int, list[float]]]:
    """Indices of samples, and the log-probs of their tokens under the weights that are in place."""
    part = [samples[index] for index in indices]
    temperature_S = torch.tensor([sample.completion.sampling.temperature for sample in part])
    for row in _pack(model, part, config).rows:
        with torch.no_grad():
            logp_R = model.logprobs(row, temperature_S[torch.from_numpy(row.source_R)])[0].cpu().numpy()
        for source in np.unique(row.source_R).tolist():
            yield indices[source], logp_R[row.source_R == source].tolist()  # in order within a completion


def _pack(model: PolicyModel, samples: Sequence[Sample], config: GRPOConfig) -> Packing:
    return pack(
        [np.array(sample.completion.prompt_token_ids) for sample in samples],
        [np.array(sample.completion.token_ids) for sample in samples],
        budget=config.token_budget,
        share=model.share,
    )


def _sizes(parts: Sequence[_Part]) -> dict[str, int]:
    """What one pass computes."""
    packings = [part.packing for part in parts]
    return {
        "tokens_total": sum(one.total for one in packings),
        "tokens_unique": sum(one.unique for one in packings),
        "tokens_repeated": sum(one.repeated for one in packings),
        "rows": sum(len(one.rows) for one in packings),
    }


def _updates(optimizer: torch.optim.AdamW) -> int:
    """Updates that the optimizer has made, in this process and before."""
    return max((int(state["step"]) for state in optimizer.state.values()), default=0)


def _why(batch: Batch) -> str:
    """Why there was nothing to learn, in words."""
    if batch.groups_skipped == batch.groups:
        return "every group has fewer than two rewarded trajectories or rewards that are all the same"
    reasons = ", ".join(f"{count} {reason}" for reason, count in batch.completions_skipped.items())
    return f"no completion can be trained: {reasons or 'the trajectories name none'}"
