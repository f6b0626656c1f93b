"""How many operations a layer dispatches: each is a kernel that a GPU must be told to launch."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from benchmarks.steps.operations import of_layer

PRODUCTS = {"aten.mm.default", "aten.addmm.default", "aten.addmm_.default", "aten.bmm.default"}


@pytest.mark.parametrize(("config", "forward", "backward"), [(Qwen3Config, 85, 165), (LlamaConfig, 70, 135)])
def test_a_layer_dispatches_few_operations(config: type, forward: int, backward: int) -> None:
    """Before adapters were cast at once and layers that read the same computed as one: 104 and 200, 88 and 172."""
    counts = of_layer(config, torch.bfloat16)
    assert 0 < counts["forward"].total() <= forward
    assert 0 < counts["backward"].total() <= backward


def test_a_layer_has_four_groups_of_products() -> None:
    """What reads the same is one product with the frozen weights, and two with the adapters; twice that and one more
    for the gradients."""
    counts = of_layer(LlamaConfig, torch.float32)
    for phase, by_group in (("forward", 3), ("backward", 5)):
        assert sum(counts[phase][name] for name in PRODUCTS - {"aten.bmm.default"}) == 4 * by_group
