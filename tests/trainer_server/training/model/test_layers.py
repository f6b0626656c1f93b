"""Compiled layers on a CPU, by inductor's C++: exact, one graph for all lengths, and few kernels.

FlexAttention has no backward pass on CPUs: plain attention with its mask takes its place. The rest is what a GPU gets.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import cpp_builder
from torch._inductor.utils import run_and_get_code
from transformers import Gemma3TextConfig, PretrainedConfig, Qwen3Config

from tests.support.training.models import SIZES, Pair, pair, stock_weights
from trainer_server.training.model import flex, policy
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import Row, pack

# What torch's compiler warns of while it traces.
pytestmark = [pytest.mark.filterwarnings("default")]

LONG: dict[str, Any] = {**SIZES, "max_position_embeddings": 1024, "head_dim": 16}
CONFIGS: dict[str, PretrainedConfig] = {
    "Qwen3": Qwen3Config(**LONG),
    "Gemma 3": Gemma3TextConfig(
        **LONG, sliding_window=50, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=16
    ),
}
BEFORE = 256
"""Operations that a layer of Qwen3 dispatched in fp32, forward and backward, when nothing was grouped or compiled."""


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(q: Any, k: Any, v: Any, *, block_mask: Any, scale: float, enable_gqa: bool) -> torch.Tensor:
        place = torch.arange(q.shape[2])
        visible = block_mask.mask_mod(0, 0, place[:, None], place[None])
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, scale=scale, enable_gqa=enable_gqa
        )

    monkeypatch.setattr(flex, "flex_attention", plain)
    monkeypatch.setattr(flex, "_kernel", lambda device: plain)
    monkeypatch.setitem(policy._ATTENTION, "cpu", (flex.NAME, flex.FlexLayout.of))
    # torch 2.13 does not quote them for g++: in a folder with a space in its name it compiles no C++. On a GPU it links
    # nothing.
    libraries = cpp_builder.BuildOptionsBase.get_libraries_dirs
    quoted = lambda options: [shlex.quote(directory) for directory in libraries(options)]  # noqa: E731
    monkeypatch.setattr(cpp_builder.BuildOptionsBase, "get_libraries_dirs", quoted)
    torch._dynamo.reset()
    counters.clear()


def branches(prompt: int) -> Row:
    rng = np.random.default_rng(prompt)
    start = rng.integers(0, 32, prompt)
    (row,) = pack([start] * 3, [rng.integers(0, 32, n) for n in (20, 7, 40)], budget=9999).rows
    return row


def results(model: PolicyModel, row: Row) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Log-probs, and the gradient of their sum."""
    logp_R, _ = model.logprobs(row, torch.ones(len(row.target_R)))
    return logp_R.detach(), list(torch.autograd.grad(logp_R.sum(), [weight for _, weight in model.parameters()]))


def stock_results(both: Pair, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by the stock model, every sequence alone."""
    logps = []
    for source in range(3):
        of_source = row.source_R == source
        first = row.place_R[of_source][0]
        depth = int(row.depth_T[first]) + 1
        ids = np.concatenate([row.tokens_T[:depth], row.target_R[of_source]])
        logp_TV = both.stock(input_ids=torch.from_numpy(ids[:-1])[None], use_cache=False).logits[0].log_softmax(-1)
        logps.append(logp_TV[depth - 1 :].gather(1, torch.from_numpy(ids[depth:])[:, None])[:, 0])
    order = np.argsort(np.argsort(row.source_R, kind="stable"), kind="stable")
    logp_R = torch.cat(logps)[torch.from_numpy(order)]
    grads = torch.autograd.grad(logp_R.sum(), list(stock_weights(both.stock).values()))
    return logp_R.detach(), torch.cat([grad.flatten() for grad in grads])


def kernels(code: str) -> int:
    """Kernels that generated code launches: fused ones, and products and the like of libraries."""
    (body,) = re.findall(r"\n    def call\(self, args\):\n(.*?)\n(?=\S|    def )", code, re.DOTALL)
    return len(re.findall(r"cpp_fused_\w+\(|extern_kernels\.\w+\(|torch\.ops\.\w+\.\w+\.\w+\(", body))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_compiled_layers_equal_the_stock_model_at_all_lengths_with_one_graph(name: str, tmp_path: Path) -> None:
    """A graph for a layer whose input needs a gradient, one for the first, which does not, and one without gradients;
    for each kind of layer."""
    both = pair(CONFIGS[name], tmp_path)
    _, codes = run_and_get_code(both.ours.compile_layers)
    assert both.ours.sharing == {"rows_shared": True, "layers_compiled": True}
    counts = [kernels(code) for code in codes]  # forward and backward of a graph, of two graphs
    assert len(counts) == 4
    if name == "Qwen3":
        assert 0 < max(counts[::2]) + max(counts[1::2]) <= BEFORE / 5, counts
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == 2
    for prompt in (300, 60, 411):
        row = branches(prompt)
        logp_R, grads = results(both.ours, row)
        expected_R, expected = stock_results(both, row)
        assert (logp_R - expected_R).abs().max() <= 1e-4
        assert (torch.cat([grad.flatten() for grad in grads]) - expected).norm() <= 1e-4 * expected.norm()
        assert all(grad.norm() > 0 for grad in grads)
    assert counters["stats"]["unique_graphs"] == graphs
    with torch.no_grad():
        same_R, _ = both.ours.logprobs(row, torch.ones(len(row.target_R)))
    assert (same_R - expected_R).abs().max() <= 1e-4
    both.ours.checkpoint_above = 0
    _, grads = results(both.ours, row)
    assert (torch.cat([grad.flatten() for grad in grads]) - expected).norm() <= 1e-4 * expected.norm()


def test_layers_that_cannot_be_compiled_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise NotImplementedError("no compiler here")

    both = pair(CONFIGS["Qwen3"], tmp_path)
    before = results(both.ours, branches(60))
    compile_now = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **options: compile_now(*args, **options, backend=broken))
    both.ours.compile_layers()
    assert both.ours.sharing["layers_compiled"] is False
    assert "no compiler here" in both.ours.sharing["layers_uncompiled_because"]
    after = results(both.ours, branches(60))
    assert torch.equal(before[0], after[0])
