"""The C kernels of vLLM's CPU worker against plain PyTorch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.engines.plugins import engine_plugin

plugin = engine_plugin("art_kernels")


@pytest.fixture
def kernels() -> object:
    if (found := plugin.load()) is None:
        pytest.skip("this machine has no C compiler: vLLM computes by PyTorch")
    return found


@pytest.mark.parametrize("residual_type", [torch.float32, torch.bfloat16])
def test_add_norm_is_the_plain_formula(kernels: object, residual_type: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 72).bfloat16(), torch.randn(72).bfloat16()
    residual = (10 * torch.randn(5, 72)).to(residual_type)
    y, total = kernels.add_norm(x, residual, weight, 1e-5)  # type: ignore[attr-defined]
    expected = x.float() + residual.float()
    assert torch.equal(total, expected)
    normal = expected * torch.rsqrt(expected.pow(2).mean(-1, keepdim=True) + 1e-5) * weight.float()
    torch.testing.assert_close(y.float(), normal, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 7])
def test_the_activation_rounds_as_pytorch_does(kernels: object, rows: int) -> None:
    torch.manual_seed(0)
    x = torch.cat([15 * torch.randn(rows, 80), torch.linspace(-80, 80, 80).expand(rows, 80)], dim=-1).bfloat16()
    for halves in (x.clamp(-85, 85), x.flip(-1)):
        gate, up = halves.chunk(2, dim=-1)
        assert torch.equal(kernels.silu_mul(halves), torch.nn.functional.silu(gate) * up)  # type: ignore[attr-defined]


@pytest.mark.parametrize("rotated", [32, 16])
def test_rotation_has_the_bits_of_pytorch(kernels: object, rotated: int) -> None:
    torch.manual_seed(0)
    heads_and_keys, angles = torch.randn(6, 5 * 32).bfloat16(), torch.randn(100, rotated).bfloat16()
    q, k = heads_and_keys.split([3 * 32, 2 * 32], dim=-1)
    positions = torch.randint(100, (6,))

    def expected(rows: torch.Tensor) -> torch.Tensor:
        heads = rows.reshape(6, -1, 32)
        one, two, rest = heads.split([rotated // 2, rotated // 2, 32 - rotated], dim=-1)
        cosine, sine = angles[positions].unsqueeze(1).chunk(2, dim=-1)
        return torch.cat([one * cosine - two * sine, two * cosine + one * sine, rest], dim=-1).reshape(6, -1)

    expected_q, expected_k = expected(q), expected(k)
    kernels.rotate(positions, q, k, 32, angles)  # type: ignore[attr-defined]
    assert torch.equal(q, expected_q)
    assert torch.equal(k, expected_k)
    kernels.rotate(positions, q, None, 32, angles)  # type: ignore[attr-defined]
    assert torch.equal(q, expected(expected_q))
    assert torch.equal(k, expected_k)


def test_fp32_numbers_are_taken_as_they_are(kernels: Any) -> None:
    """Each kernel computes in fp32 what PyTorch does there, and not in bf16."""
    torch.manual_seed(0)
    x, residual, weight = torch.randn(5, 72), 10 * torch.randn(5, 72), torch.randn(72)
    y, total = kernels.add_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    expected = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5) * weight
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)

    gate, up = torch.cat([15 * torch.randn(5, 40), torch.randn(5, 40)], dim=-1).chunk(2, dim=-1)
    silu = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(kernels.silu_mul(torch.cat([gate, up], dim=-1)), silu, rtol=1e-5, atol=1e-6)

    q, angles, positions = torch.randn(6, 3 * 32), torch.randn(100, 32), torch.randint(100, (6,))
    one, two = q.view(6, 3, 32).chunk(2, dim=-1)
    cosine, sine = angles[positions].unsqueeze(1).chunk(2, dim=-1)
    rotated = torch.cat([one * cosine - two * sine, two * cosine + one * sine], dim=-1).view(6, -1)
    kernels.rotate(positions, q, None, 32, angles)
    torch.testing.assert_close(q, rotated, rtol=1e-5, atol=1e-6)

    y, x, down, up = torch.randn(3, 72), torch.randn(3, 16), torch.randn(2, 8, 16), torch.randn(2, 8, 72)
    expected = y.clone()
    for row, slot in ((0, 1), (2, 0)):
        expected[row] += 0.5 * (x[row] @ down[slot].T) @ up[slot]
    kernels.lora_linear(y, x, down, up, torch.tensor([1, -1, 0]), torch.tensor([72]), 0.5)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 6, 7, 19])
def test_few_rows_times_weights_that_bf16_holds(kernels: Any, rows: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 60)[:, :50], torch.randn(96, 50).bfloat16().float()
    y = kernels.linear(x, plugin.pack_linear(weight))
    torch.testing.assert_close(y.double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-4)


def test_weights_that_bf16_does_not_hold_are_left_to_pytorch() -> None:
    assert plugin.pack_linear(torch.full((32, 50), 0.1)) is None
    assert plugin.pack_linear(torch.zeros(31, 50)) is None


@pytest.mark.parametrize("shape", [(3, 50), (1, 3, 50), (60, 50)])
def test_a_layer_takes_few_rows_and_leaves_many(kernels: Any, shape: tuple[int, ...]) -> None:
    weight, bias = torch.randn(32, 50).bfloat16().float(), torch.randn(32)
    many: list[int] = []

    def stock(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        many.append(x.numel() // 50)
        return torch.nn.functional.linear(x, weight, bias)

    linear = engine_plugin("art_linear").with_few_rows(stock, plugin.pack_linear(weight), kernels)
    x = torch.randn(shape)
    torch.testing.assert_close(linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))
    assert many == ([60] if shape == (60, 50) else [])


@pytest.mark.parametrize("rows", [1, 7, 8, 19])
def test_the_head_gives_exact_products(kernels: object, rows: int) -> None:
    if not kernels.has_head:  # type: ignore[attr-defined]
        pytest.skip("this processor has no products of bf16 pairs: the head is computed by PyTorch")
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 50).bfloat16(), torch.randn(96, 50).bfloat16()
    logits = kernels.head(x, plugin.pack_head(weight))  # type: ignore[attr-defined]
    torch.testing.assert_close(logits.double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-4)


def test_heads_of_other_shapes_are_left_to_pytorch() -> None:
    assert plugin.pack_head(torch.zeros(31, 50).bfloat16()) is None
    assert plugin.pack_head(torch.zeros(32, 51).bfloat16()) is None


def test_rows_without_an_adapter_stay_as_they_are(kernels: object) -> None:
    y = torch.randn(3, 8).bfloat16()
    before = y.clone()
    down, up = torch.ones(1, 8, 16).bfloat16(), torch.ones(1, 8, 8).bfloat16()
    slots, ends = torch.tensor([-1, 0, -1]), torch.tensor([8])
    kernels.lora_linear(y, torch.ones(3, 16).bfloat16(), down, up, slots, ends, 1.0)  # type: ignore[attr-defined]
    assert torch.equal(y[[0, 2]], before[[0, 2]])
    torch.testing.assert_close(y[1].float(), before[1].float() + 8 * 16, rtol=2**-7, atol=0)


def test_the_library_is_compiled_once(kernels: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plugin.compile_kernels(tmp_path)
    monkeypatch.setattr(plugin.shutil, "which", lambda name: None)
    assert plugin.compile_kernels(tmp_path) == made
    assert list(tmp_path.iterdir()) == [made]


def test_without_a_compiler_the_log_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin.shutil, "which", lambda name: None)
    monkeypatch.setattr(plugin.sys, "prefix", str(tmp_path))
    with caplog.at_level(logging.WARNING, "vllm.art"):
        assert plugin.load.__wrapped__() is None
    assert "Install gcc" in caplog.text


def test_switched_off_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_KERNELS", "0")
    assert plugin.load.__wrapped__() is None
