"""A step of a mixture uses the sampler's experts where the ledger has them, and says how many."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig

from tests.support.engines.experts import as_vllm_sends
from tests.support.training.models import SIZES, tiny_model
from tests.support.training.worker import completion, groups, step
from trainer_server.common import Home
from trainer_server.common.routed_experts import pack_experts
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.training.grpo.batch import Origin, Sample
from trainer_server.training.grpo.minibatch import Tokens, pack_samples
from trainer_server.training.model.routing import sampled_experts
from trainer_server.training.worker import Worker
from trainer_server.wire import Completion, PolicySpec, TrainingError

pytestmark = pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
MIXTURE = Qwen3MoeConfig(**SIZES, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16)


def with_experts(one: Completion, seed: int) -> Completion:
    tokens = len(one.prompt_token_ids) + len(one.token_ids)
    first = np.random.default_rng(seed).integers(0, 6, (tokens - 1, 2, 1))
    experts = np.concatenate([first, (first + 1) % 6], axis=2).astype(np.uint8)
    return one.model_copy(update={"routed_experts": pack_experts(as_vllm_sends(experts), tokens)})


def sample(one: Completion) -> Sample:
    return Sample(one, 1.0, (True,) * len(one.token_ids))


PLAIN = [completion("c0", [5, 6, 7]), completion("c1", [5, 9]), completion("c2", [8, 6])]


def test_the_first_completion_of_a_shared_token_counts() -> None:
    same = [with_experts(PLAIN[0], 0), PLAIN[1], with_experts(PLAIN[2], 0)]  # the same experts of 1, 2, 3
    (row,) = pack_samples([sample(one) for one in same], 100, share=True).rows
    tokens = Tokens.of([sample(one) for one in same], 0)
    experts = tokens.experts(row)
    assert experts is not None
    first, third = sampled_experts(same[0]), sampled_experts(same[2])
    assert first is not None
    assert third is not None
    assert np.array_equal(experts[:5], first)  # 1 2 3 5 6
    assert np.array_equal(experts[5], third[3])  # 8
    assert tokens.replay_metrics([row]) == {"experts_replayed": 1.0, "experts_ambiguous": 0}

    other = [sample(PLAIN[1]), sample(with_experts(PLAIN[2], 1))]
    (row,) = pack_samples(other, 100, share=True).rows
    found = Tokens.of(other, 0).experts(row)
    assert found is not None
    assert (found[3] < 0).all()  # 5, of the completion without experts
    assert Tokens.of(other, 0).replay_metrics([row])["experts_replayed"] == 4 / 5

    apart = [sample(with_experts(PLAIN[0], 1)), sample(with_experts(PLAIN[2], 2))]
    (row,) = pack_samples(apart, 100, share=True).rows
    assert Tokens.of(apart, 0).replay_metrics([row])["experts_ambiguous"] == 3
    assert Tokens.of(apart, 0).without_experts().experts(row) is None
    assert Tokens.of([sample(PLAIN[0])], 0).replay_metrics([row]) == {}


def test_a_step_replays_the_experts_of_its_ledger(tmp_path: Path) -> None:
    results: dict[bool, Any] = {}
    for replayed in (False, True):
        home = Home(tmp_path / str(replayed) / "home")
        ledger = SQLiteLedger(home.ledger)
        rows = [with_experts(one, at) for at, one in enumerate(PLAIN)] if replayed else PLAIN
        asyncio.run(ledger.add(*rows))
        ledger.close()
        model = tiny_model(tmp_path / str(replayed) / "model", MIXTURE)
        worker = Worker(home, model, ledger=ledger, origin=Origin("tiny", "tok"))
        worker.store.register(PolicySpec(name="p"), "tiny")
        worker.do(worker.queue.accept("create", "p", spec=PolicySpec(name="p")))
        done = step(worker, groups(1.0, 0.0, 0.0), num_iterations=2)
        assert done.error is None
        results[replayed] = done.result.metrics
    assert "experts_replayed" not in results[False]
    assert results[True]["experts_replayed"] == 1.0
    assert abs(results[True]["logp_gap"] - results[False]["logp_gap"]) > 1e-4  # other experts: another function


def test_experts_of_other_tokens_are_refused() -> None:
    one = with_experts(PLAIN[0], 0).model_copy(update={"token_ids": [5, 6, 7, 8]})
    with pytest.raises(TrainingError, match="routed_experts of c0 has 5 rows for 7 tokens"):
        sampled_experts(one)
    with pytest.raises(TrainingError, match="routed_experts of c0"):
        sampled_experts(one.model_copy(update={"routed_experts": "nothing"}))


def test_old_rows_have_no_experts() -> None:
    row = PLAIN[0].model_dump()
    del row["routed_experts"]
    assert sampled_experts(Completion(**row)) is None
    assert torch.is_tensor(Tokens.of([sample(Completion(**row))], 0).trained_F)
