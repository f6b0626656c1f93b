"""One training step, top to bottom: batch → prefix tree → log-probs → loss → gradients → new weights, once or more.

Old log-probabilities. A completion of the version that is being trained has ratio 1 in the first update, whoever
computed its log-probs; what lies between vLLM's and the trainer's arithmetic is corrected by importance sampling. A
completion of an older version has the sampler's log-probs as its old ones. Completions sampled under a constraint have
log-probs that are not the policy's; theirs are recomputed under the version that sampled them.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from trainer_server.training.grpo.batch import Batch, minibatches
from trainer_server.training.grpo.loss import grpo_loss
from trainer_server.training.grpo.metrics import Seen, alarms
from trainer_server.training.grpo.minibatch import Part
from trainer_server.training.grpo.old_logprobs import Under, look_back, refer, survey, tokens_of
from trainer_server.training.grpo.schedule import learning_rate
from trainer_server.training.grpo.tokens import Tokens
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.ranks import ALONE, Ranks
from trainer_server.wire import GRPOConfig, TrainingError


def optimise(
    model: PolicyModel,
    optimizer: torch.optim.AdamW,
    batch: Batch,
    config: GRPOConfig,
    under: Under,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Trains the weights of `batch.version` in place, `num_iterations` × `num_minibatches` updates; returns metrics.

    All ranks call it with the same weights, batch and random state, and come out with the same weights and metrics.
    When nothing can be learnt, the metrics carry `skipped`, the reason, and nothing is changed. After a TrainingError
    the weights are those of no version.
    """
    started = time.monotonic()
    tokens = tokens_of(model, batch, config, under, ranks)
    rng = random.Random(int(torch.randint(2**62, ()).item()))
    parts = [
        Part.of(batch.samples, indices, tokens, config, share=model.share, ranks=ranks.count)
        for indices in minibatches(batch.samples, config.num_minibatches, rng)
    ]
    sizes = {**_sizes(parts), "rows_shared": model.share, "tokens_trained": int(tokens.trained_F.sum())}
    metrics = {**batch.metrics(), **sizes}
    if not metrics["tokens_trained"]:
        return {**metrics, "skipped": _why(batch)}
    packed = time.monotonic()
    seen = Seen(ranks)
    if tokens.expected_logp_F.isnan().all():
        seen.compare(look_back(model, batch.samples, config, under, ranks))
    if config.num_iterations * len(parts) > 1 or config.top_entropy_quantile < 1:
        seen.compare(survey(model, parts, tokens, config, ranks))
    if config.beta > 0:
        refer(model, parts, tokens, config, under, ranks)
    surveyed = time.monotonic()

    losses, norms = [], []
    weights = [weight for _, weight in model.parameters()]
    update = first = _updates(optimizer)
    for part in (part for _ in range(config.num_iterations) for part in rng.sample(parts, len(parts))):
        optimizer.zero_grad(set_to_none=True)
        losses.append(_backward(model, part, tokens, config, seen, ranks))
        ranks.add_gradients(weights)
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights, config.max_grad_norm)))
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
        "ranks": ranks.count,
        "seconds": {"pack": packed - started, "survey": surveyed - packed, "compute": time.monotonic() - surveyed},
    }


def _backward(model: PolicyModel, part: Part, tokens: Tokens, config: GRPOConfig, seen: Seen, ranks: Ranks) -> float:
    """Adds up this rank's gradients of an update, row by row; returns the loss of all ranks."""
    loss = torch.zeros(1, dtype=torch.float64)
    for row, counts in ranks.mine(part.rows):
        model.gradient_checkpointing(len(row.tokens_T) > model.checkpoint_above)
        temperature_R, wanted = tokens.temperature_R(row), bool(config.entropy_coef)
        logp_R, entropy_R = (one.cpu() for one in model.logprobs(row, temperature_R, entropy_gradient=wanted))
        keep_R, given = tokens.readouts(row, part.share_S, part.bonus)
        result = grpo_loss(logp_R[keep_R], given, config, entropy_R[keep_R])
        (result.loss if counts else result.loss * 0).backward()  # type: ignore[no-untyped-call]
        if counts:
            loss += result.loss.item()
            seen.add(result, logp_R.detach() - tokens.expected_logp_F[tokens.of_row(row)], entropy_R[keep_R])
    ranks.add(loss)
    return loss.item()


def _sizes(parts: Sequence[Part]) -> dict[str, int]:
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
    if batch.groups_skipped.total() == batch.groups:
        return "every group has fewer than two rewarded trajectories or rewards that are all the same"
    reasons = ", ".join(f"{count} {reason}" for reason, count in batch.completions_skipped.items())
    return f"no completion can be trained: {reasons or 'the trajectories name none'}"
