"""The learning rate is transformers'."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import get_scheduler

from trainer_server.training.optimizer import learning_rate
from trainer_server.wire import GRPOConfig


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_schedules_are_those_of_transformers(kind: Any, warmup: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-4)
    theirs = get_scheduler(kind if kind != "constant" else "constant_with_warmup", optimizer, warmup, 10)
    for update in range(11):  # beyond, transformers' cosine would rise again
        found = learning_rate(2e-4, kind, update, warmup=warmup, total=10)
        assert found == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_a_falling_rate_needs_an_end() -> None:
    with pytest.raises(ValueError, match="max_steps"):
        GRPOConfig(lr_scheduler_type="cosine")
    with pytest.raises(ValueError, match="max_steps"):
        GRPOConfig(lr_scheduler_type="linear", warmup_steps=10, max_steps=10)
