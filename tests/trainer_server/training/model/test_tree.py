"""The prefix tree computes what separate sequences compute."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.training.models import ARCHITECTURES, packed, tiny_model
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import Packing, common_prefix, pack

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=12)  # few symbols: many shared prefixes
pairs = st.lists(st.tuples(tokens, tokens), min_size=1, max_size=8)


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PolicyModel:
    return tiny_model(tmp_path_factory.mktemp(request.param), ARCHITECTURES[request.param])


def logps_and_gradients(model: PolicyModel, packing: Packing) -> tuple[dict[tuple[int, int], float], torch.Tensor]:
    """Log-probs by (completion, offset), and the gradient of a fixed weighting of them."""
    for _, weight in model.parameters():
        weight.grad = None
    found: dict[tuple[int, int], float] = {}
    for row in packing.rows:
        logp_R, _ = model.logprobs(row, torch.ones(len(row.target_R)))
        keys = list(zip(row.source_R.tolist(), row.offset_R.tolist(), strict=True))
        (logp_R * torch.tensor([1.0 + i + 0.1 * j for i, j in keys])).sum().backward()
        found.update(zip(keys, logp_R.tolist(), strict=True))
    gradient = torch.cat([w.grad.flatten() for _, w in model.parameters() if w.grad is not None])
    return found, gradient


def assert_same(model: PolicyModel, data: list[tuple[list[int], list[int]]], budget: int = 10_000) -> None:
    tree, tree_gradient = logps_and_gradients(model, packed(data, budget=budget))
    alone, gradient = logps_and_gradients(model, packed(data, share=False))
    assert tree.keys() == alone.keys()
    assert max(abs(tree[key] - alone[key]) for key in tree) <= 1e-5
    assert (tree_gradient - gradient).norm() <= 1e-5 * gradient.norm()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs)
def test_splitting_over_the_budget_changes_nothing(model: PolicyModel, data: list[tuple[list[int], list[int]]]) -> None:
    assert_same(model, data, budget=24)


def test_gradient_checkpointing_changes_nothing(model: PolicyModel) -> None:
    data = [([1, 2, 3, 1, 2], [3, 3, 0]), ([1, 2, 3, 1, 2], [3, 1]), ([1, 2, 3, 1, 2, 3, 1, 0], [2, 2])]
    expected = logps_and_gradients(model, packed(data))
    model.checkpoint_above = 0
    try:
        found = logps_and_gradients(model, packed(data))
    finally:
        model.checkpoint_above = 10_000
    assert found[0] == pytest.approx(expected[0], abs=1e-6)
    assert torch.allclose(found[1], expected[1], rtol=1e-5, atol=1e-6)


def test_separate_sequences_equal_the_model_as_transformers_runs_it(tmp_path: Path) -> None:
    """The reference of the other tests is not the code under test: stock eager attention says the same."""
    from transformers import AutoModelForCausalLM

    for name, config in ARCHITECTURES.items():
        model = tiny_model(tmp_path / name, config)
        with torch.no_grad():
            for key, weight in model.parameters():
                if "lora_B" in key:
                    weight.zero_()
        stock = AutoModelForCausalLM.from_pretrained(tmp_path / name, attn_implementation="eager")
        prompt, completion = [1, 2, 3, 1, 2, 3, 0, 1, 2], [3, 0, 1]
        found, _ = logps_and_gradients(model, packed([(prompt, completion)]))
        with torch.no_grad():
            logits = stock(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
        for offset, token in enumerate(completion):
            assert found[0, offset] == pytest.approx(logits[len(prompt) - 1 + offset, token].item(), abs=1e-5)


@given(pairs)
def test_the_mask_law(data: list[tuple[list[int], list[int]]]) -> None:
    """k is visible to q iff k ≤ q < end[k]: exactly the path of every token, and depth counts it."""
    for row in packed(data).rows:
        end_T = row.end_T
        for run in row.runs:
            for q in range(run.start, run.stop):
                visible = [k for k in range(len(end_T)) if k <= q < end_T[k]]
                assert visible == run.path_L[: row.depth_T[q] + 1].tolist()


@given(pairs)
def test_rows_that_may_not_branch_share_only_what_goes_on(data: list[tuple[list[int], list[int]]]) -> None:
    paths = sorted(prompt + completion[:-1] for prompt, completion in data)
    ends = sum(after[: len(path)] != path for path, after in pairwise(paths)) + 1
    rows = packed(data, share=False).rows
    assert len(rows) == ends
    for row in rows:
        (run,) = row.runs
        assert (run.start, run.stop, run.path_L.tolist()) == (0, len(row.tokens_T), list(range(len(row.tokens_T))))


@given(pairs, st.integers(8, 40))
def test_nothing_is_lost_or_computed_twice(data: list[tuple[list[int], list[int]]], budget: int) -> None:
    packing = packed(data, budget=budget)
    read = [(i, j) for row in packing.rows for i, j in zip(row.source_R.tolist(), row.offset_R.tolist(), strict=True)]
    expected = [(i, j) for i, (_, c) in enumerate(data) if i not in packing.too_long for j in range(len(c))]
    assert sorted(read) == expected
    for row in packing.rows:
        assert len(row.tokens_T) <= budget
        for place, target, source, offset in zip(row.place_R, row.target_R, row.source_R, row.offset_R, strict=True):
            prompt, completion = data[source]
            assert row.depth_T[place] == len(prompt) - 1 + offset
            assert target == completion[offset]
    prefixes = {
        tuple((p + c[:-1])[:n])
        for i, (p, c) in enumerate(data)
        if i not in packing.too_long
        for n in range(1, len(p) + len(c))
    }
    assert packing.unique == len(prefixes)
    assert packing.unique + packing.repeats == sum(len(row.tokens_T) for row in packing.rows)
    assert all(len(data[i][0]) + len(data[i][1]) - 1 > budget for i in packing.too_long)


def test_a_row_ends_where_it_would_be_computed_twice() -> None:
    """Two groups of three runs, each with a prompt that they share: a row takes one group."""
    prompts = [list(range(start, start + 40)) for start in (0, 0, 0, 100, 100, 100)]
    answers = [[1000 + number] * 11 for number in range(6)]
    assert [len(row.tokens_T) for row in pack(prompts, answers, budget=200).rows] == [140]
    assert [len(row.tokens_T) for row in pack(prompts, answers, budget=200, row_end=100).rows] == [70, 70]
    # In the middle of a group, both passes over the prompt's 40 tokens would take longer than one pass over 70.
    assert [len(row.tokens_T) for row in pack(prompts, answers, budget=200, row_end=65).rows] == [70, 70]
    assert [len(row.tokens_T) for row in pack(prompts, answers, budget=65, row_end=65).rows] == [60, 50, 60, 50]


def test_common_prefix() -> None:
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 2, 4])) == 2
    assert common_prefix(np.array([1, 2]), np.array([1, 2, 4])) == 2
    assert common_prefix(np.array([], dtype=np.int64), np.array([1])) == 0
