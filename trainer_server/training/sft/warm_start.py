"""A warm start, top to bottom: demonstrations → batches → prefix trees → log-probs → loss → new weights.

A batch is one optimizer update. What its demonstrations have in common is computed once, logits exist only at tokens
that have a loss, and the loss is their mean negative log-probability. AdamW, schedule and names are those of
`trl.SFTTrainer`; the tests compare loss and weights with it.

The optimizer lives as long as the job. Its moments belong to another loss and another learning rate: a policy-gradient
step that follows begins with fresh ones.

Shapes: R read-outs (tokens that have a loss) of a packed row.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from trainer_server.jobs.demonstrations import Demonstrations
from trainer_server.jobs.demonstrations import Row as Demonstration
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import Row
from trainer_server.training.optimizer import check_weights, learning_rate, make_optimizer
from trainer_server.training.ranks import ALONE, Ranks
from trainer_server.training.sft.batches import Paths
from trainer_server.training.sft.held_out import HeldOut
from trainer_server.training.sft.order import Clock, Order
from trainer_server.training.sft.prefixes import Prefixes
from trainer_server.wire import SFTConfig, TrainingError

MEASURED_UPDATES = 32
"""Updates between two measurements of the held-out loss at most: longer epochs are measured at even intervals."""

_MOST_RAISED = 2.0
"""Factor on `lr` for few updates at most."""

Progress = Callable[[float, dict[str, float]], None]
"""Called after each update, with the share of the work that is done, and measurements (`Job.measured`)."""


def warm_start(
    model: PolicyModel,
    demonstrations: Demonstrations,
    config: SFTConfig,
    *,
    progress: Progress = lambda *_: None,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Trains the weights that are in place. On CPU, the same rows, weights and seed give the same bits, as long as
    `max_seconds` does not end the training.

    All ranks call it with the same weights and rows, and end with the same weights and metrics. After a TrainingError
    the weights are those of no version.

    Args:
        model: The base model with the LoRA that is trained.
        demonstrations: Rows of token ids, and their spans that have a loss.
        config: Of the warm start.
        progress: Called after each update.
        ranks: The processes that train together.

    Returns:
        The metrics. When nothing was learnt, they carry `skipped`, the reason, and no weight has changed.

    Raises:
        TrainingError: A loss or gradient is not finite, or the weights cannot be used; see `check_weights`.
    """
    clock = Clock(config.max_seconds, ranks, spent_seconds=demonstrations.seconds if config.fit_to_time else 0.0)
    torch.manual_seed(config.seed)  # of what follows the warm start: it draws from the order's generator alone
    rows = demonstrations.rows
    if not rows:
        return {**_counts(demonstrations), "skipped": demonstrations.why_nothing("imitate")}
    order = Order(rows, config, ranks)
    fits, epoch = order.fits, order.epoch
    total = epoch * config.num_train_epochs
    measured_after = _measured_after(epoch)
    optimizer = make_optimizer(model, config)
    budget = ranks.agree(model.row_budget(config.token_budget))
    history = _History(config.lr)
    validation = demonstrations.validation
    held_out = HeldOut(model, validation.rows, config, ranks) if validation and not fits else None
    in_context = config.detach_prefix == "context" and model.detaches_context
    prefixes = Prefixes(model, rows, order.family_of, order.size) if in_context else None
    if held_out:
        held_out.measure(0)

    while (update := len(history.losses)) < total:
        measuring = held_out.seconds[-1] if held_out else 0.0
        moment = clock.look(statistics.fmean(history.seconds) + measuring if history.seconds else 0.0)
        if moment.over and update:
            history.end_reason = "max_seconds"
            break
        batch = order.take(clock.seconds_left)
        if validation and fits and order.passes == 1 and not held_out:
            held_out = HeldOut(model, validation.rows, config, ranks)
            held_out.measure(update)
        start = time.monotonic()
        peak = _peak(config, min(total, update / moment.share) if update and moment.share else total)
        rate = _learning_rate(config, peak, max(update, moment.share * total), total)
        _update(model, optimizer, [rows[index] for index in batch], config, rate, history, ranks, budget, prefixes)
        history.lr = peak
        history.seconds.append(time.monotonic() - start)
        order.record(batch, history.seconds[-1])
        if held_out and update % epoch + 1 in measured_after:
            held_out.measure(update + 1)
        share = max((update + 1) / total, min(1.0, moment.share))
        seconds_left = clock.elapsed_seconds * (1 - share) / share
        progress(share, _measurements(history.losses, held_out, update + 1, epoch, total, seconds_left))
        if held_out and config.patience and held_out.evaluations_without_gain >= config.patience:
            history.end_reason = "patience"
            break

    if held_out:
        if held_out.updates[-1] < len(history.losses):
            held_out.measure(len(history.losses))
        held_out.restore()
    check_weights(model, history.lr)
    sources = sorted({rows[index].source for index in order.imitated_rows}) if fits else None
    return {**_metrics(demonstrations, history, held_out, epoch, sources), **model.sharing, "ranks": ranks.count}


@dataclass(slots=True)
class _History:
    """The updates of a warm start so far.

    lr: peak learning rate of the last one. losses, norms, seconds: of each. token_count: tokens that were computed.
    detached_count: of them, those without a gradient. end_reason: `stopped` of the metrics.
    """

    lr: float
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    token_count: int = 0
    detached_count: int = 0
    end_reason: str = "epochs"


def _update(
    model: PolicyModel,
    optimizer: torch.optim.AdamW,
    rows: Sequence[Demonstration],
    config: SFTConfig,
    rate: float,
    history: _History,
    ranks: Ranks,
    budget: int,
    prefixes: Prefixes | None,
) -> None:
    """Moves the weights by one batch, in rows of at most `budget` tokens, and adds its figures to the history. Raises
    TrainingError for a loss or gradient that is not finite."""
    packing = Paths.of(rows).pack(budget, share=model.share, ranks=ranks.count, row_end=model.row_end)
    optimizer.zero_grad(set_to_none=True)
    loss_tokens = sum(row.loss_tokens for row in rows)
    detached = bool(config.detach_prefix)
    loss = _backward(model, packing.rows, loss_tokens, ranks, detached=detached, prefixes=prefixes)
    weights = optimizer.param_groups[0]["params"]
    ranks.all_reduce_gradients(weights)
    norm = float(torch.nn.utils.clip_grad_norm_(weights, config.max_grad_norm))
    history.losses.append(loss)
    history.norms.append(norm)
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise TrainingError(
            f"the loss of update {len(history.losses)} is {loss} and the gradient norm {norm}, after a loss of "
            f"{history.losses[0]} in the first: no version was made; try a smaller lr"
        )
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()
    history.token_count += packing.unique + packing.repeats
    if prefixes:
        history.detached_count += sum(len(row.tokens_T) - len(np.unique(row.place_R)) for row in packing.rows)
        prefixes.end_update()
    elif detached and model.detaches:
        history.detached_count += sum(row.trunk for row in packing.rows)


def _metrics(
    demonstrations: Demonstrations, history: _History, held_out: HeldOut | None, epoch: int, sources: list[int] | None
) -> dict[str, Any]:
    """The metrics of a warm start but for those of model and ranks.

    Args:
        demonstrations: The rows.
        history: Of its updates; there is one at least.
        held_out: The measurements; None: there are none.
        epoch: Updates of a pass over all rows.
        sources: Where the rows come from that were imitated; None: all rows were.
    """
    count, losses = len(history.losses), held_out.losses if held_out else []
    metrics: dict[str, Any] = {
        **_counts(demonstrations),
        "updates": count,
        "updates_kept": held_out.updates[held_out.best] if held_out else count,
        "epochs": count / epoch,
        "lr": history.lr,
        **({} if sources is None else {"imitated": sources}),
        "stopped": history.end_reason,
        "validation_losses": losses,
        "validation_updates": held_out.updates if held_out else [],
        "loss_first": history.losses[0],
        "loss_last": history.losses[-1],
        "grad_norm": history.norms[-1],
        "tokens_unique": round(history.token_count * epoch / count),
        "tokens_detached": round(history.detached_count * epoch / count),
        "tokens_per_second": history.token_count / sum(history.seconds),
        "seconds": {
            "render": demonstrations.seconds,
            "validation": sum(held_out.seconds) if held_out else 0.0,
            "compute": sum(history.seconds),
        },
    }
    if held_out and not held_out.updates[held_out.best]:
        metrics["skipped"] = (
            f"the held-out loss did not fall: {losses[0]:.4f} before training, at least {min(losses[1:]):.4f} "
            "afterwards. Give more demonstrations that are like the held-out ones, or a smaller lr"
        )
    return metrics


def _backward(
    model: PolicyModel,
    rows: Sequence[Row],
    tokens: int,
    ranks: Ranks,
    *,
    detached: bool,
    prefixes: Prefixes | None = None,
) -> float:
    """Adds up this rank's gradients of an update, row by row; the loss of all ranks.

    Args:
        model: The model.
        rows: Of the update.
        tokens: Number of the update's tokens that have a loss.
        ranks: The processes that compute it.
        detached: Whether no gradient goes through the keys and values of a row's trunk, where the model allows it.
        prefixes: Then no gradient goes through those of any token that reads nothing out. None: it does.
    """
    loss = torch.zeros(1, dtype=torch.float64, device=model.device)  # read once: no row waits for the one before
    with ranks.computing():
        for row, counts in ranks.shard_rows(rows):
            if prefixes is None:
                logp_R, _ = model.logprobs(row, torch.ones(len(row.target_R)), detached=detached)
            else:
                logp_R = model.answer_logprobs(row, prefixes.trunk(row))
            part = -logp_R.double().sum() / tokens
            (part if counts else part * 0).backward()  # type: ignore[no-untyped-call]
            if counts:
                loss += part.detach()
    loss = loss.cpu()
    ranks.all_reduce(loss)
    return loss.item()


def _peak(config: SFTConfig, updates: float) -> float:
    """The peak learning rate of so many updates."""
    if config.lr_updates is None:
        return config.lr
    return config.lr * min(_MOST_RAISED, math.sqrt(config.lr_updates / updates))


def _learning_rate(config: SFTConfig, peak: float, update: float, total: int) -> float:
    """A fraction as `warmup_steps` is rounded down: a single update must not be one with a rate of 0."""
    warmup = int(config.warmup_steps if config.warmup_steps >= 1 else config.warmup_steps * total)
    return learning_rate(peak, config.lr_scheduler_type, update, warmup=warmup, total=total)


def _measured_after(epoch: int) -> set[int]:
    """After how many updates of an epoch the held-out loss is measured: in the end, and at even intervals before."""
    parts = math.ceil(epoch / MEASURED_UPDATES)
    return {math.ceil(epoch * part / parts) for part in range(1, parts + 1)}


def _measurements(
    losses: Sequence[float], held_out: HeldOut | None, updates: int, epoch: int, total: int, seconds_left: float
) -> dict[str, float]:
    """`Job.measured` after an update."""
    return {
        "loss": losses[-1],
        **({"validation_loss": held_out.losses[-1]} if held_out else {}),
        "epoch": updates / epoch,
        "updates": updates,
        "updates_left": total - updates,
        "seconds_left": seconds_left,
    }


def _counts(demonstrations: Demonstrations) -> dict[str, Any]:
    """How much there is to imitate and to measure, and what was skipped."""
    counts: dict[str, Any] = {
        "rows": len(demonstrations.rows),
        "turns": demonstrations.turns,
        "tokens_total": sum(len(row.ids) for row in demonstrations.rows),
        "tokens_trained": sum(row.loss_tokens for row in demonstrations.rows),
        "turns_skipped": demonstrations.turns_skipped,
        "conversations_skipped": demonstrations.conversations_skipped,
        "trajectories_skipped": demonstrations.trajectories_skipped,
    }
    if held_out := demonstrations.validation:
        counts |= {
            "validation_rows": len(held_out.rows),
            "validation_turns": held_out.turns,
            "validation_skipped": held_out.skip_counts,
        }
    return counts
