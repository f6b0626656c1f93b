"""LoRA's linear layer under torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from trainer_server.training.model.lora import _LoRALinear

# What torch itself does in tracing any autograd function.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def gradients(layer: Any) -> list[torch.Tensor]:
    """Of the output, by x, A and B, after an activation as models have it."""
    generator = torch.Generator().manual_seed(0)
    x_NI, a_RI, b_OR, w_OI = (torch.randn(shape, generator=generator) for shape in ((6, 8), (3, 8), (10, 3), (10, 8)))
    free = [x_NI.requires_grad_(), a_RI.requires_grad_(), b_OR.requires_grad_()]
    y_NO = torch.nn.functional.silu(layer(x_NI, w_OI, a_RI, b_OR))
    return [y_NO.detach(), *torch.autograd.grad((y_NO * torch.arange(60.0).view(6, 10)).sum(), free)]


def layer(x_NI: torch.Tensor, w_OI: torch.Tensor, a_RI: torch.Tensor, b_OR: torch.Tensor) -> torch.Tensor:
    y_NO: torch.Tensor = _LoRALinear.apply(x_NI, w_OI, a_RI, b_OR, 0.5)
    return y_NO


def calls(graph: torch.fx.GraphModule) -> Iterator[str]:
    """Names of what a traced graph computes, with the graphs in it: an autograd function's two are such."""
    for module in graph.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if node.op in ("call_function", "call_method"):
                yield getattr(node.target, "__name__", str(node.target))


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def test_compiled_and_plain_layers_have_the_same_gradients() -> None:
    for found, expected in zip(gradients(torch.compile(layer, backend="aot_eager")), gradients(layer), strict=True):
        assert expected.norm() > 1
        torch.testing.assert_close(found, expected)


def test_nothing_is_traced_that_computes_in_place() -> None:
    """torch 2.11 makes gradients of 0 of it."""
    traced: list[str] = []

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        traced.extend(calls(graph))
        return graph

    gradients(torch.compile(layer, backend=backend))
    assert "addmm" in traced
    assert not [name for name in traced if name.endswith("_")]
