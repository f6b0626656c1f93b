"""The packed tree on GPUs, as far as the CPU decides it: what torch's kernel is given, and how often it compiles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import flex_attention

from trainer_server.training.model import flex
from trainer_server.training.model.tree import pack

CPU = torch.device("cpu")
Kernel = Callable[..., Any]


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile traces and guards, and leaves out the compiler."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    counters.clear()


def attend(tokens: int, window: int | None, size: int = 16, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Attention over a row of so many tokens, of which the last two are branches."""
    (row,) = pack([np.arange(tokens - 2)] * 2, [np.array([1, 2]), np.array([2, 2])], budget=9999).rows
    assert len(row.tokens_T) == tokens
    q, k, v = (torch.randn(1, heads, tokens, size, dtype=dtype) for heads in (4, 2, 2))
    return flex._attend(0, q, k, v, flex.FlexLayout.of(row, CPU), window, None, None)


@pytest.mark.parametrize(("tokens", "given"), [(3, 256), (128, 256), (255, 256), (256, 256), (300, 300)])
@pytest.mark.parametrize(("size", "wide"), [(4, 16), (8, 16), (16, 16), (24, 24), (80, 80)])
@pytest.mark.parametrize("window", [None, 100])
def test_the_kernel_gets_shapes_that_gpus_have_kernels_for(
    tokens: int, given: int, size: int, wide: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA torch has none for heads below 16. Of rows of one block another, which fp32 with a window lacks."""
    seen: list[Any] = []

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        seen.append((q.shape, k.shape, v.shape, options["block_mask"].seq_lengths, options["scale"]))
        return torch.zeros_like(q)

    monkeypatch.setattr(flex, "_kernel", lambda device: kernel)
    assert attend(tokens, window, size).shape == (1, tokens, 4, size)
    heads = (1, 4, given, wide), (1, 2, given, wide), (1, 2, given, wide)
    assert seen == [(*heads, (given, given), size**-0.5)]


def test_a_hybrid_compiles_a_graph_for_each_window_whatever_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = flex.compile_strict(flex_attention)
    monkeypatch.setattr(flex, "_kernel", lambda device: kernel)
    with torch.no_grad():
        for tokens in (300, 10, 128):
            for window in (None, 96):
                attend(tokens, window)
    assert counters["stats"]["unique_graphs"] == 2


def test_what_would_run_uncompiled_past_the_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_GRAPHS", 3)
    with torch._dynamo.config.patch(recompile_limit=2):
        kernel = flex.compile_strict(lambda x, kind: x + len(kind))
        for kind in ("a", "bb", "ccc"):
            assert kernel(torch.zeros(1), kind) == len(kind)
        with pytest.raises(RuntimeError, match=r"compiled 3 times.*not compiled again"):
            kernel(torch.zeros(1), "dddd")
        assert kernel(torch.zeros(1), "a") == 1


def test_what_torch_cannot_compile_whole_is_an_error() -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(Exception, match="graph_break"):
        flex.compile_strict(breaks)(torch.zeros(1))


@pytest.mark.parametrize("setting", ["disable", "suppress_errors"])
def test_an_environment_that_keeps_torch_from_compiling_is_an_error(setting: str) -> None:
    with (
        torch._dynamo.config.patch({setting: True}),
        pytest.raises(RuntimeError, match=r"must be compiled.*unset TORCHDYNAMO_DISABLE"),
    ):
        flex.compile_strict(flex_attention)
