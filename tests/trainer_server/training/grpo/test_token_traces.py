"""What a step writes down of each token: the trainer's own log-probs and entropies, and why the rest was left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.training.worker import COMPLETIONS, groups, make_worker, step
from trainer_server.ledger.step_tokens import StepTokens, read_step_tokens
from trainer_server.training.model.tree import pack
from trainer_server.training.worker import Worker
from trainer_server.wire import PolicySpec


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Worker:
    return make_worker(tmp_path_factory.mktemp("worker"))


def written(worker: Worker) -> StepTokens:
    found = read_step_tokens(worker.queue.root / worker.queue.ids()[-1])
    assert found is not None
    return found


@pytest.mark.parametrize("config", [{}, {"num_iterations": 2}, {"token_budget": 8}, {"num_minibatches": 1}], ids=str)
def test_the_log_probs_are_those_of_the_version_that_is_trained(worker: Worker, config: dict[str, Any]) -> None:
    newest = worker.store.versions("p")[-1]
    worker.model.load(PolicySpec(name="p"), worker.store.directory("p", newest))
    expected = {}
    for one in COMPLETIONS:
        (row,) = pack([np.array(one.prompt_token_ids)], [np.array(one.token_ids)], budget=100).rows
        with torch.no_grad():
            expected[one.id] = [
                values.tolist() for values in worker.model.logprobs(row, torch.ones(len(one.token_ids)))
            ]
    trained = step(worker, groups(1.0, 0.0, 0.0), lr=1e-2, **config)
    assert trained.error is None
    assert "tokens" not in trained.result.metrics
    found = written(worker).completions
    assert [(one.trajectory, one.completion) for one in found] == [("t0", "c0"), ("t1", "c1"), ("t2", "c2")]
    for one in found:
        logprobs, entropy = expected[one.completion]
        assert one.logprobs == pytest.approx(logprobs, abs=2e-4)
        assert one.entropy == pytest.approx(entropy, abs=2e-4)
        assert all(one.trained)
    assert found[0].advantage > 0 > found[1].advantage


def test_what_is_left_out_has_its_reason(worker: Worker) -> None:
    step(worker, [*groups(1.0, None, 0.0), *groups(0.5, 0.5)])
    tokens = written(worker)
    assert {(one.trajectory, one.reason) for one in tokens.left_out} == {
        ("t1", "no_reward"),
        ("t0", "equal_rewards"),
        ("t1", "equal_rewards"),
    }
    step(worker, groups(1.0, 0.0, 0.0), token_budget=5)
    assert [(one.trajectory, one.completion, one.reason) for one in written(worker).left_out] == [
        ("t2", "c2", "too_long")
    ]


def test_a_step_that_trains_nothing_says_why(worker: Worker) -> None:
    trained = step(worker, groups(0.5, 0.5))
    assert "skipped" in trained.result.metrics
    tokens = written(worker)
    assert tokens.completions == []
    assert tokens.reasons("t0") == ["equal_rewards"]


def test_a_disk_that_is_full_ends_no_step(worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(directory: Path, tokens: StepTokens) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainer_server.training.job_runner.write_step_tokens", full)
    assert step(worker, groups(1.0, 0.0, 0.0)).error is None
