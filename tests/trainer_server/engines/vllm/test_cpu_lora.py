"""The CPU LoRA plugin's arithmetic against the plain formula, on random mixes of adapters."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engines.plugins import engine_plugin

plugin = engine_plugin("art_cpu_lora")
slots = st.lists(st.integers(-1, 4), min_size=1, max_size=40)
runs = st.lists(st.tuples(st.integers(-1, 4), st.integers(1, 30)), min_size=1, max_size=12).map(
    lambda pairs: [slot for slot, length in pairs for _ in range(length)]
)


@given(st.one_of(slots, runs))
def test_every_row_with_an_adapter_is_in_its_group_once(rows: list[int]) -> None:
    found = [-1] * len(rows)
    for slot, where in plugin.group_by_slot(rows):
        at = range(len(rows))[where] if isinstance(where, slice) else where.tolist()
        for row in at:
            assert found[row] == -1
            found[row] = slot
    assert found == rows


@given(
    rows=st.one_of(slots, runs),
    widths=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    rank=st.integers(1, 5),
    inputs=st.integers(1, 8),
    scale=st.sampled_from([1.0, 0.5, 2.0]),
    dtype=st.sampled_from([torch.float64, torch.bfloat16]),
    compiled=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_lora_linear_equals_the_plain_formula(
    rows: list[int],
    widths: list[int],
    rank: int,
    inputs: int,
    scale: float,
    dtype: torch.dtype,
    compiled: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    kernels = engine_plugin("art_kernels").load() if compiled else None
    x = torch.randn(len(rows), inputs, dtype=dtype)
    y = torch.randn(len(rows), sum(widths), dtype=dtype)
    # vLLM's stacked layout has an axis of one between slot and matrix.
    a = [torch.randn(5, 1, rank, inputs, dtype=dtype) for _ in widths]
    b = [torch.randn(5, 1, width, rank, dtype=dtype) for width in widths]
    expected = y.double().clone()
    for row, slot in enumerate(rows):
        if slot >= 0:
            parts = [
                bs[slot, 0].double() @ (as_[slot, 0].double() @ x[row].double()) for as_, bs in zip(a, b, strict=True)
            ]
            expected[row] += scale * torch.cat(parts)
    before = y.clone()
    plugin.lora_linear(y, x, a, b, scale, plugin.Batch.of(rows, 5), plugin.PackedMatrices(), kernels)
    tolerance = 1e-9 if dtype is torch.float64 else 0.3 * (1 + inputs * rank) ** 0.5
    torch.testing.assert_close(y.double(), expected, rtol=0.03, atol=tolerance)
    for row, slot in enumerate(rows):
        if slot < 0:
            assert torch.equal(y[row], before[row])


def test_new_weights_count_once_the_packed_ones_are_forgotten() -> None:
    packed = plugin.PackedMatrices()
    x, y = torch.ones(1, 2), torch.zeros(1, 2)
    a, b = [torch.ones(1, 1, 1, 2)], [torch.ones(1, 1, 2, 1)]
    batch = plugin.Batch.of([0], 1)
    plugin.lora_linear(y, x, a, b, 1.0, batch, packed, None)
    b[0] *= 3
    packed.clear()
    plugin.lora_linear(y, x, a, b, 1.0, batch, packed, None)
    assert y.tolist() == [[8.0, 8.0]]


def test_switched_off_it_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ART_CPU_LORA=0` must leave vLLM as it is."""
    monkeypatch.setenv("ART_CPU_LORA", "0")
    plugin.register()
    assert not hasattr(plugin.register, "library")
