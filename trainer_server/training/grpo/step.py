"""One training step, top to bottom: batch → prefix tree → log-probs → loss → gradients → new weights, once or more.

The losses are in `loss.py`; `objective.py` adds what is common to all of them. `batch.py` says which runs are left out.

Old log-probabilities. A completion of the version that is being trained has ratio 1 in the first update, whoever
computed its log-probs; importance weights correct for the difference between vLLM's and the trainer's arithmetic. A
completion of an older version has the sampler's log-probs as its old ones; with `proximal_policy="step"` it has those
of the version that the step begins with, and importance weights correct for the rest (decoupled clipping). Completions
sampled under a constraint have log-probs that are not the policy's; theirs are recomputed under the version that
sampled them.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from trainer_server.ledger.step_tokens import StepTokens
from trainer_server.training.grpo.batch import Batch
from trainer_server.training.grpo.logprobs import (
    WithTeacher,
    WithVersion,
    compared_with_sampler,
    old_logprobs,
    reference_logprobs,
    teacher_logprobs,
    trainable_samples,
)
from trainer_server.training.grpo.metrics import StepMetrics, TokenTraces, alarms
from trainer_server.training.grpo.minibatch import Minibatch, Tokens, highest_entropy, minibatches
from trainer_server.training.grpo.objective import LossResult, grpo_loss
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import Row
from trainer_server.training.optimizer import UpdateCheck, learning_rate
from trainer_server.training.ranks import ALONE, Ranks
from trainer_server.wire import GRPOConfig, TrainingError


def optimise(
    model: PolicyModel,
    optimizer: torch.optim.AdamW,
    batch: Batch,
    config: GRPOConfig,
    with_version: WithVersion,
    with_teacher: WithTeacher,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Trains the weights of `batch.version` in place, by `num_iterations` × `num_minibatches` updates.

    All ranks call it with the same weights, batch and random state, and end with the same weights and metrics. After a
    TrainingError the weights are those of no version.

    Returns:
        The metrics. When nothing can be trained, they carry `skipped`, the reason, and no weight has changed. `tokens`
        is no metric: the log-prob and entropy of each token (StepTokens).
    """
    start = time.monotonic()
    batch = batch.keeping(*trainable_samples(model, batch, config, with_version, ranks))
    tokens = Tokens.of(batch.samples, batch.version, config.proximal_policy)
    rng = random.Random(int(torch.randint(2**62, ()).item()))
    budget = ranks.agree(model.row_budget(config.token_budget))
    parts = _minibatches(model, batch, tokens, config, rng, ranks, budget)
    rows = [row for part in parts for row in part.rows]
    metrics = {**batch.metrics(), **_sizes(parts), **model.sharing, "tokens_trained": int(tokens.trained_F.sum())}
    if model.replays:
        metrics |= tokens.replay_metrics(rows)
    if not metrics["tokens_trained"]:
        return {**metrics, "skipped": batch.why_nothing(), "tokens": StepTokens(left_out=batch.left_out)}
    packing_end = time.monotonic()

    step_metrics, traces = StepMetrics(ranks), TokenTraces(len(tokens.trained_F), ranks)
    if tokens.expected_logp_F.isnan().all():
        step_metrics.compare(compared_with_sampler(model, batch.samples, config, with_version, ranks))
    if config.num_iterations * len(parts) > 1 or config.top_entropy_quantile < 1:
        tokens = _with_old_logprobs(model, parts, tokens, config, step_metrics, traces, ranks)
    if config.beta > 0:
        tokens = replace(tokens, reference_logp_F=reference_logprobs(model, rows, tokens, config, with_version, ranks))
    if batch.has_teacher(config):
        teacher_logp_F, teaching = teacher_logprobs(model, batch.samples, rows, tokens, config, with_teacher, ranks)
        tokens, metrics = replace(tokens, teacher_logp_F=teacher_logp_F), {**metrics, **teaching}
    logprobs_end = time.monotonic()

    losses, norms, forward = [], [], 0.0
    text = batch.samples[0].completion
    check = UpdateCheck(model, [*text.prompt_token_ids, *text.token_ids], ranks)
    weights = [weight for _, weight in model.parameters()]
    update = first_update = _updates(optimizer)
    for minibatch in (part for _ in range(config.num_iterations) for part in rng.sample(parts, len(parts))):
        optimizer.zero_grad(set_to_none=True)
        loss, seconds = _backward(model, minibatch, tokens, config, step_metrics, traces, ranks)
        losses.append(loss)
        forward += seconds
        ranks.all_reduce_gradients(weights)
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights, config.max_grad_norm)))
        if not (math.isfinite(losses[-1]) and math.isfinite(norms[-1])):
            raise TrainingError(f"the loss is {losses[-1]} and the gradient norm {norms[-1]}: no version was made")
        step_metrics.check_gap(config)
        optimizer.param_groups[0]["lr"] = learning_rate(
            config.lr, config.lr_scheduler_type, update, warmup=config.warmup_steps, total=config.max_steps
        )
        optimizer.step()
        update += 1
    check.verify(optimizer.param_groups[0]["lr"])

    phases = {"pack": packing_end - start, "old_logprobs": logprobs_end - packing_end, "forward": forward}
    phases["backward"] = time.monotonic() - logprobs_end - forward
    tokens_of_pass = metrics["tokens_unique"] + metrics["tokens_repeated"]
    rate = config.num_iterations * tokens_of_pass / (forward + phases["backward"])
    return {
        **metrics,
        "loss": statistics.fmean(losses),
        "grad_norm": statistics.fmean(norms),
        "grad_norm_max": max(norms),
        **(summary := step_metrics.summary()),
        "alarms": alarms(summary),
        "lr": optimizer.param_groups[0]["lr"],
        "updates": update - first_update,
        "updates_total": update,
        "ranks": ranks.count,
        "seconds": phases,
        "row_fill": tokens_of_pass / metrics["rows"] / budget,
        "tokens_per_second": rate,
        "mfu": model.mfu(rate / ranks.count),
        "tokens": traces.summary(batch.samples, batch.left_out),
    }


def _minibatches(
    model: PolicyModel,
    batch: Batch,
    tokens: Tokens,
    config: GRPOConfig,
    rng: random.Random,
    ranks: Ranks,
    budget: int,
) -> list[Minibatch]:
    """The minibatches of a batch, packed into rows of at most `budget` tokens."""
    whole = config.loss_aggregation == "trajectory"
    return [
        Minibatch.of(
            batch.samples,
            index_S,
            tokens,
            config,
            share=model.share,
            budget=budget,
            ranks=ranks.count,
            row_end=model.row_end,
        )
        for index_S in minibatches(batch.samples, config.num_minibatches, rng, whole_trajectories=whole)
    ]


def _with_old_logprobs(
    model: PolicyModel,
    parts: Sequence[Minibatch],
    tokens: Tokens,
    config: GRPOConfig,
    step_metrics: StepMetrics,
    traces: TokenTraces,
    ranks: Ranks,
) -> Tokens:
    """The tokens with log-probs of the weights that are in place, which several updates take their ratios against, and
    with the active tokens of `top_entropy_quantile`."""
    rows = [row for part in parts for row in part.rows]
    logp_F, entropy_F = old_logprobs(model, rows, tokens, ranks)
    step_metrics.compare(logp_F - tokens.expected_logp_F)
    traces.set_all(logp_F, entropy_F, tokens.trained_index(rows))
    tokens = replace(tokens, old_logp_F=torch.where(tokens.old_logp_F.isnan(), logp_F, tokens.old_logp_F))
    if config.top_entropy_quantile < 1:
        tokens = replace(tokens, active_F=highest_entropy(parts, tokens, entropy_F, config.top_entropy_quantile))
    return tokens


def _backward(
    model: PolicyModel,
    minibatch: Minibatch,
    tokens: Tokens,
    config: GRPOConfig,
    step_metrics: StepMetrics,
    traces: TokenTraces,
    ranks: Ranks,
) -> tuple[float, float]:
    """Adds up this rank's gradients of an update, row by row, and its metrics. Returns the loss of all ranks, and the
    seconds of this rank's forward passes: on a GPU, until they are queued.

    What a GPU computes is read once, after the last row: to wait for a row would leave the GPU idle before the next."""
    loss, forward = torch.zeros(1, dtype=torch.float64), 0.0
    rows: list[tuple[Row, torch.Tensor]] = []
    results: list[LossResult] = []
    outputs: list[tuple[torch.Tensor, torch.Tensor]] = []
    entropy_scale, entropy_gradient = minibatch.entropy_scale(tokens), bool(config.entropy_coef)
    with ranks.computing():
        for row, counts in ranks.shard_rows(minibatch.rows):
            start = time.monotonic()
            logp_R, entropy_R = model.logprobs(
                row,
                tokens.temperature_R(row),
                entropy_gradient=entropy_gradient,
                experts_TLK=tokens.experts(row),
            )
            forward += time.monotonic() - start
            place, readouts = tokens.readouts(row, minibatch.token_weight_S, entropy_scale)
            at = place.to(logp_R.device, non_blocking=True)
            result = grpo_loss(logp_R[at], readouts.to(logp_R.device), config, entropy_R[at])
            (result.loss if counts else result.loss * 0).backward()  # type: ignore[no-untyped-call]
            if counts:
                rows.append((row, place))
                results.append(result)
                outputs.append((logp_R.detach(), entropy_R.detach()))
        for (row, place), result, (logp_R, entropy_R) in zip(rows, *_on_cpu(results, outputs), strict=True):
            loss += result.loss.item()
            index_R = tokens.index_R(row)
            traces.add(index_R, logp_R, entropy_R)
            step_metrics.add(result, logp_R - tokens.expected_logp_F[index_R], entropy_R[place])
    ranks.all_reduce(loss)
    return loss.item(), forward


def _on_cpu(
    results: Sequence[LossResult], outputs: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[list[LossResult], list[tuple[torch.Tensor, torch.Tensor]]]:
    """What was computed of some rows, in main memory, by one transfer. All of it is fp32."""
    names = [field.name for field in fields(LossResult)]
    tensors = [getattr(result, name) for result in results for name in names]
    tensors += [part for pair in outputs for part in pair]
    present = [tensor.detach() for tensor in tensors if tensor is not None]
    if not present:
        return [], []
    flat = torch.cat([tensor.reshape(-1) for tensor in present]).cpu()
    parts = iter(flat.split([tensor.numel() for tensor in present]))
    moved: list[Any] = [None if tensor is None else next(parts).view(tensor.shape) for tensor in tensors]
    end = len(results) * len(names)
    by_result = [moved[at : at + len(names)] for at in range(0, end, len(names))]
    return (
        [LossResult(**dict(zip(names, values, strict=True))) for values in by_result],
        list(zip(moved[end::2], moved[end + 1 :: 2], strict=True)),
    )


def _sizes(parts: Sequence[Minibatch]) -> dict[str, int]:
    """What one pass over the batch computes, in tokens and rows."""
    return {
        "tokens_total": sum(part.packing.total for part in parts),
        "tokens_unique": sum(part.packing.unique for part in parts),
        "tokens_repeated": sum(part.packing.repeats for part in parts),
        "rows": sum(len(part.rows) for part in parts),
    }


def _updates(optimizer: torch.optim.AdamW) -> int:
    """Updates that the optimizer has made, in this process and before."""
    return next((int(state["step"]) for state in optimizer.state.values()), 0)
