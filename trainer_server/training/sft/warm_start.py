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
from typing import Any

import torch

from trainer_server.jobs.demonstrations import Demonstrations
from trainer_server.training.checkpoint import make_optimizer
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import Row
from trainer_server.training.ranks import ALONE, Ranks
from trainer_server.training.schedule import learning_rate
from trainer_server.training.sft.batches import Paths
from trainer_server.training.sft.clock import Clock
from trainer_server.training.sft.held_out import HeldOut
from trainer_server.training.sft.order import Order
from trainer_server.training.update_check import check_weights
from trainer_server.wire import SFTConfig, TrainingError

MEASURED_UPDATES = 32
"""Updates between two measurements of the held-out loss at most: longer epochs are measured at even intervals."""

_MOST_RAISED = 2.0
"""Factor on `lr` for few updates at most."""

Progress = Callable[[float, dict[str, float]], None]
"""Called after each update, with the share of the work that is done and what was measured, see `Job`."""


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
    rows, counts = demonstrations.rows, _counts(demonstrations)
    if not rows:
        return {**counts, "skipped": demonstrations.why_nothing("imitate")}
    order = Order(rows, config, ranks)
    fits, epoch = order.fits, order.epoch
    total = epoch * config.num_train_epochs
    measured_after = _measured_after(epoch)
    optimizer = make_optimizer(model, config)
    weights = [weight for _, weight in model.parameters()]
    held_out = None
    if demonstrations.validation and not fits:
        held_out = HeldOut(model, demonstrations.validation.rows, config, ranks)
        held_out.measure(0)

    losses: list[float] = []
    norms: list[float] = []
    seconds: list[float] = []
    computed, detached, stopped = 0, 0, "epochs"
    rate = config.lr
    while (update := len(losses)) < total:
        measuring = held_out.seconds[-1] if held_out else 0.0
        moment = clock.look(statistics.fmean(seconds) + measuring if seconds else 0.0)
        if moment.over and update:
            stopped = "max_seconds"
            break
        taken = order.take(clock.seconds_left)
        if demonstrations.validation and fits and order.passes == 1 and not held_out:
            held_out = HeldOut(model, demonstrations.validation.rows, config, ranks)
            held_out.measure(update)
        started = time.monotonic()
        chosen = [rows[index] for index in taken]
        packing = Paths.of(chosen).pack(
            config.token_budget, share=model.share, ranks=ranks.count, row_end=model.row_end
        )
        optimizer.zero_grad(set_to_none=True)
        loss_tokens = sum(row.loss_tokens for row in chosen)
        losses.append(_backward(model, packing.rows, loss_tokens, ranks, detached=config.detach_prefix))
        ranks.all_reduce_gradients(weights)
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights, config.max_grad_norm)))
        if not (math.isfinite(losses[-1]) and math.isfinite(norms[-1])):
            raise TrainingError(
                f"the loss of update {update + 1} is {losses[-1]} and the gradient norm {norms[-1]}, after a loss of "
                f"{losses[0]} in the first: no version was made; try a smaller lr"
            )
        rate = _peak(config, min(total, update / moment.share) if update and moment.share else total)
        optimizer.param_groups[0]["lr"] = _learning_rate(config, rate, max(update, moment.share * total), total)
        optimizer.step()
        computed += packing.unique + packing.repeats
        if config.detach_prefix and model.detaches:
            detached += sum(row.trunk for row in packing.rows)
        seconds.append(time.monotonic() - started)
        order.took(taken, seconds[-1])
        if held_out and update % epoch + 1 in measured_after:
            held_out.measure(update + 1)
        share = max((update + 1) / total, min(1.0, moment.share))
        progress(
            share,
            _measurements(losses, held_out, update + 1, epoch, total, clock.elapsed_seconds * (1 - share) / share),
        )
        if held_out and config.patience and held_out.evaluations_without_gain >= config.patience:
            stopped = "patience"
            break

    if held_out and held_out.updates[-1] < len(losses):
        held_out.measure(len(losses))
    if held_out:
        held_out.restore()
    check_weights(model, rate)
    metrics = {
        **counts,
        "updates": len(losses),
        "updates_kept": held_out.updates[held_out.best] if held_out else len(losses),
        "epochs": len(losses) / epoch,
        "lr": rate,
        **({"imitated": sorted({rows[index].source for index in order.imitated_rows})} if fits else {}),
        "stopped": stopped,
        "validation_losses": held_out.losses if held_out else [],
        "validation_updates": held_out.updates if held_out else [],
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "grad_norm": norms[-1],
        "tokens_unique": round(computed * epoch / len(losses)),
        "tokens_detached": round(detached * epoch / len(losses)),
        "tokens_per_second": computed / sum(seconds),
        **model.sharing,
        "ranks": ranks.count,
        "seconds": {
            "render": demonstrations.seconds,
            "validation": sum(held_out.seconds) if held_out else 0.0,
            "compute": sum(seconds),
        },
    }
    if held_out and not held_out.updates[held_out.best]:
        least = min(held_out.losses[1:])
        metrics["skipped"] = (
            f"the held-out loss did not fall: {held_out.losses[0]:.4f} before training, at least {least:.4f} "
            "afterwards. Give more demonstrations that are like the held-out ones, or a smaller lr"
        )
    return metrics


def _backward(model: PolicyModel, rows: Sequence[Row], tokens: int, ranks: Ranks, *, detached: bool) -> float:
    """Adds up this rank's gradients of an update, row by row; the loss of all ranks.

    Args:
        model: The model.
        rows: Of the update.
        tokens: Number of the update's tokens that have a loss.
        ranks: The processes that compute it.
        detached: Whether no gradient goes through the keys and values of a row's trunk, where the model allows it.
    """
    loss = torch.zeros(1, dtype=torch.float64)
    with ranks.computing():
        for row, counts in ranks.shard_rows(rows):
            logp_R, _ = model.logprobs(row, torch.ones(len(row.target_R)), detached=detached)
            part = -logp_R.sum() / tokens
            (part if counts else part * 0).backward()  # type: ignore[no-untyped-call]
            if counts:
                loss += part.item()
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
    """What `Job.measured` says after an update."""
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
