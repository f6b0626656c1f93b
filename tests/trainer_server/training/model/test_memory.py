"""How many layers are computed twice, by the memory that is free; and what a layer keeps, measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.support.training.models import PLAIN, SPEC, tiny_model
from trainer_server.training.model.head import chunk_size
from trainer_server.training.model.memory import LayerMemory
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import Row, pack

LAYERS = 6


def test_as_few_layers_are_computed_twice_as_must_be() -> None:
    memory = LayerMemory(layer_bytes=100.0, input_bytes=10.0)
    for tokens in (1000, 32_000):
        by_free = [memory.layers_twice(tokens, 10, tokens * each) for each in range(0, 3000, 10)]
        assert by_free == sorted(by_free, reverse=True)
        assert by_free[0] == 10
        assert by_free[-1] == 0
        assert set(by_free) == {0, *range(by_free[by_free.index(0) - 1], 11)}
        for each, twice in zip(range(0, 3000, 10), by_free, strict=True):
            needed = twice * 10 + (10 - twice + 1) * 100
            assert needed <= each or twice == 10


def test_the_measured_layer_is_no_larger_than_its_input_where_nothing_is_kept() -> None:
    assert LayerMemory(layer_bytes=10.0, input_bytes=10.0).layers_twice(100, 4, 10) == 4


def test_the_longest_row_that_fits_computes_no_layer_twice() -> None:
    memory = LayerMemory(layer_bytes=100.0, input_bytes=10.0)
    for free in (10_000, 1_000_000, 123_456_789):
        tokens = memory.row_tokens(10, free)
        assert memory.layers_twice(tokens, 10, free) == 0
        assert memory.layers_twice(tokens + 1, 10, free) > 0


def test_what_was_measured_is_kept_for_the_same_facts(tmp_path: Path) -> None:
    measured: list[int] = []

    def find(**facts: object) -> LayerMemory:
        def measure() -> LayerMemory:
            measured.append(1)
            return LayerMemory(layer_bytes=100.0 * len(measured), input_bytes=10.0)

        return LayerMemory.find(tmp_path / "layers", facts, measure)

    first = find(card="A", rank=8)
    assert find(card="A", rank=8) == first
    assert len(measured) == 1
    assert find(card="B", rank=8) != first
    assert find(card="A", rank=16) != first
    assert len(measured) == 3
    for file in (tmp_path / "layers").iterdir():
        file.write_text('{"layer_bytes": "much"}')
    find(card="A", rank=8)
    assert len(measured) == 4, "what is damaged is measured again"
    assert LayerMemory.find(None, {}, lambda: first) == first


def test_a_place_that_cannot_be_written_costs_a_measurement_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    memory = LayerMemory(1.0, 1.0)
    assert LayerMemory.find(tmp_path / "file" / "layers", {}, lambda: memory) == memory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PolicyModel:
    return tiny_model(tmp_path_factory.mktemp("model"), LlamaConfig(**{**PLAIN, "num_hidden_layers": LAYERS}))


def gradients(model: PolicyModel, row: Row) -> tuple[torch.Tensor, int]:
    """The LoRA's gradient, and bytes that the forward pass kept for it."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logp_R, _ = model.logprobs(row, torch.ones(len(row.target_R)))
    grads = torch.autograd.grad(logp_R.sum(), [weight for _, weight in model.parameters()])
    return torch.cat([grad.flatten() for grad in grads]), sum(kept.values())


def test_a_row_computes_layers_twice_until_it_fits_and_gives_the_same(model: PolicyModel) -> None:
    calls: list[int] = []
    for layer in model._base.model.layers:
        layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    rng = np.random.default_rng(0)
    (row,) = pack([rng.integers(0, 32, 700)], [rng.integers(0, 32, 20)], budget=9999).rows
    expected, whole = gradients(model, row)
    recomputed = []
    for share in (4.0, 1.1, 0.8, 0.01):
        model.free_memory = lambda share=share: int(share * whole)  # type: ignore[misc]
        gradients(model, row)  # the first measures
        calls.clear()
        found, kept = gradients(model, row)
        recomputed.append(len(calls) - LAYERS)
        torch.testing.assert_close(found, expected)
        assert kept <= max(share, 0.35) * whole
    model.free_memory = None
    assert recomputed[0] == 0
    assert recomputed[-1] == LAYERS
    assert 0 < recomputed[1] < recomputed[2] < LAYERS


def test_rows_are_as_long_as_fits_and_no_longer_than_somebody_chose(
    model: PolicyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model.row_budget(8192) == 8192, "on a processor, as configured"
    monkeypatch.setattr(model, "_cache", tmp_path)
    monkeypatch.setattr(model, "_memories", {})
    memory = model._layer_memory()
    whole = (LAYERS + 1) * memory.layer_bytes / 0.85
    for free, budget in ((0, 8192), (8000, 8192), (20_000, 20_000), (10**6, 32_768)):
        monkeypatch.setattr(model, "free_memory", lambda free=free: int(free * whole))
        assert model.row_budget(8192) == pytest.approx(budget, abs=1)
        assert model.row_budget(4096) == 4096
    assert model.row_budget(50_000) == 50_000


def test_a_process_does_not_measure_again_what_another_has(
    model: PolicyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "_cache", tmp_path)
    monkeypatch.setattr(model, "_memories", {})
    first = model._layer_memory()
    model._memories.clear()  # as in another process
    with monkeypatch.context() as patch:
        patch.setattr(model, "_any_row", lambda tokens: pytest.fail("it was measured again"))
        assert model._layer_memory() == first
    other = SPEC.model_copy(update={"rank": 2})
    model.select(other, beside=True)
    try:
        assert model._layer_memory().layer_bytes < first.layer_bytes
    finally:
        model.select(SPEC)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_model_that_rests_goes_back_to_the_memory_that_it_came_from(tmp_path: Path) -> None:
    path = str(tmp_path)
    AutoModelForCausalLM.from_config(LlamaConfig(**PLAIN)).save_pretrained(path)
    resting = PolicyModel(path, dtype=torch.float32, device="cpu", rest=True)
    resting.initialise(SPEC)
    (row,) = pack([np.arange(20)], [np.arange(5)], budget=100).rows
    frozen = [weight for weight in resting._base.parameters() if not weight.requires_grad]
    places = [weight.data_ptr() for weight in frozen]
    results = []
    for _ in range(2):
        resting.wake()
        results.append(resting.logprobs(row, torch.ones(5))[0].detach())
        assert [weight.data_ptr() for weight in frozen] != places, "what is tied lies elsewhere"
        resting.rest()
        assert [weight.data_ptr() for weight in frozen] == places
    assert torch.equal(*results)


def test_chunks_of_the_head_grow_with_the_memory_that_is_free() -> None:
    gib = 1 << 30
    assert chunk_size(151_936, 1 * gib) == 128
    assert chunk_size(151_936, 24 * gib) >= 1024
    assert chunk_size(151_936, 139 * gib) == 4096
