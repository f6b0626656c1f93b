"""What is held out is measured and never trained; the best weights are kept; the training ends in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.training.models import ARCHITECTURES, VOCABULARY, tiny_model
from trainer_server.jobs.demonstrations import Demonstrations, Row
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.ranks import ALONE
from trainer_server.training.sft.held_out import HeldOut
from trainer_server.training.sft.warm_start import _measured_after, warm_start
from trainer_server.wire import SFTConfig

ROWS = [Row(ids=[1, 2, 3, 9, 8, 7], loss_spans=[(3, 6)]), Row(ids=[4, 5, 6, 11, 12], loss_spans=[(3, 5)])]
OVERFITS = [Row(ids=[1, 2, 3, 9, 8, 20], loss_spans=[(3, 6)])]
"""Two of its tokens are those of a demonstration, and get likelier at first; the third gets ever less likely."""


@pytest.fixture
def model(tmp_path: Path) -> PolicyModel:
    return tiny_model(tmp_path / "model", ARCHITECTURES["llama"])


def given(held_out: list[Row], rows: list[Row] = ROWS) -> Demonstrations:
    return Demonstrations(rows=rows, turns=len(rows), validation=Demonstrations(rows=held_out, turns=len(held_out)))


def config(**options: Any) -> SFTConfig:
    defaults = {"lr": 1e-2, "num_train_epochs": 30, "warmup_steps": 0, "lr_scheduler_type": "constant_with_warmup"}
    return SFTConfig(**{**defaults, **options})


def loss(model: PolicyModel, rows: list[Row]) -> float:
    measured = HeldOut(model, rows, config(), ALONE)
    measured.measure(0)
    return measured.losses[0]


def test_the_weights_with_the_least_held_out_loss_are_kept_and_not_the_last(model: PolicyModel) -> None:
    metrics = warm_start(model, given(OVERFITS), config(patience=None))
    losses = metrics["validation_losses"]
    assert metrics["stopped"] == "epochs"
    assert metrics["validation_updates"] == list(range(31))
    assert losses[-1] > min(losses) + 0.1
    assert losses[metrics["updates_kept"]] == min(losses) < losses[0]
    assert loss(model, OVERFITS) == min(losses)


def test_patience_ends_the_training_and_what_is_held_out_changes_no_gradient(model: PolicyModel) -> None:
    start = [weight.detach().clone() for _, weight in model.parameters()]
    metrics = warm_start(model, given(OVERFITS), config(patience=2))
    losses = metrics["validation_losses"]
    assert metrics["stopped"] == "patience"
    assert metrics["updates"] == metrics["updates_kept"] + 2 == losses.index(min(losses)) + 2
    kept = [weight.detach().clone() for _, weight in model.parameters()]
    for (_, weight), before in zip(model.parameters(), start, strict=True):
        weight.data.copy_(before)
    alone = config(num_train_epochs=metrics["updates_kept"])
    assert warm_start(model, Demonstrations(rows=ROWS, turns=2), alone)["validation_losses"] == []
    assert all(torch.equal(weight, other) for (_, weight), other in zip(model.parameters(), kept, strict=True))


def test_where_no_held_out_loss_is_smaller_nothing_changes_and_that_is_said(model: PolicyModel) -> None:
    start = [weight.detach().clone() for _, weight in model.parameters()]
    others = [[Row(ids=[1, 2, 3, token], loss_spans=[(3, 4)])] for token in range(VOCABULARY) if token != 9]
    likeliest = min(others, key=lambda rows: loss(model, rows))  # which a demonstration of another token makes less so
    metrics = warm_start(model, given(likeliest, ROWS[:1]), config(patience=3))
    assert metrics["skipped"].startswith("the held-out loss did not fall: ")
    assert (metrics["updates"], metrics["updates_kept"], metrics["stopped"]) == (3, 0, "patience")
    assert all(torch.equal(weight, other) for (_, weight), other in zip(model.parameters(), start, strict=True))


def test_the_time_ends_the_training_after_one_update_at_least_and_what_it_made_is_measured(model: PolicyModel) -> None:
    metrics = warm_start(model, given(OVERFITS), config(max_seconds=1e-6, per_device_train_batch_size=1))
    assert (metrics["stopped"], metrics["updates"], metrics["epochs"]) == ("max_seconds", 1, 0.5)
    assert metrics["validation_updates"] == [0, 1]


@pytest.mark.parametrize(("epoch", "after"), [(1, {1}), (32, {32}), (33, {17, 33}), (70, {24, 47, 70})])
def test_a_long_epoch_is_measured_at_even_intervals(epoch: int, after: set[int]) -> None:
    assert _measured_after(epoch) == after


def test_progress_tells_the_losses_and_what_is_left(model: PolicyModel) -> None:
    told: list[tuple[float, dict[str, float]]] = []
    warm_start(
        model, given(OVERFITS), config(num_train_epochs=2, patience=None), progress=lambda *given: told.append(given)
    )
    assert [share for share, _ in told] == [0.5, 1.0]
    assert [(one["epoch"], one["updates"], one["updates_left"]) for _, one in told] == [(1, 1, 1), (2, 2, 0)]
    assert told[-1][1]["seconds_left"] == 0.0
    assert told[0][1]["loss"] > told[1][1]["loss"] > 0
    assert told[0][1]["validation_loss"] > 0
