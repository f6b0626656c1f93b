"""LoRA's linear layers as few products, and under torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from trainer_server.training.model.lora import FusedLoRA, _LoRALinear, model_targets

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
    y_NO: torch.Tensor = _LoRALinear.apply(x_NI, w_OI, None, a_RI, b_OR)
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


class Attention(torch.nn.Module):
    """Three layers; the second and third read another input than the first where they are told to."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(8, size, bias=bias) for size in (12, 6, 6))

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.q_proj(x), self.k_proj(other), self.v_proj(other)], -1)


class Decoder(torch.nn.Module):
    """Two layers of attention, and what the trainer asks of a model."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Attention(bias), Attention(bias)])

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x, other) + self.layers[1](x, other)

    def get_decoder(self) -> Decoder:
        return self


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("targets", [["q_proj", "k_proj", "v_proj"], ["q_proj", "v_proj"], ["k_proj"]])
def test_layers_of_a_group_compute_what_peft_computes(bias: bool, same: bool, targets: list[str]) -> None:
    torch.manual_seed(0)
    peft: Any = get_peft_model(Decoder(bias), LoraConfig(r=3, lora_alpha=12, target_modules=targets)).double()
    weights = [weight for name, weight in sorted(peft.named_parameters()) if "lora_" in name]
    for weight in weights:
        torch.nn.init.normal_(weight)
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    other = x if same else torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)

    def results() -> list[torch.Tensor]:
        y = peft.get_base_model()(x, other)
        return [y, *torch.autograd.grad(y.square().sum(), [x, *weights])]

    expected = results()
    fused = FusedLoRA(peft, "default")
    for _ in range(2):
        for mine, theirs in zip(results(), expected, strict=True):
            torch.testing.assert_close(mine, theirs)
    fused.untie()
    torch.testing.assert_close(results()[0], expected[0])


class NineExperts(torch.nn.Module):
    """Experts, by the name of their class."""


class Mixture(torch.nn.Module):
    """A layer of attention, with experts in a block in place of an MLP, or beside one.

    Args:
        block: The module that has the experts; empty: the layer itself.
    """

    def __init__(self, block: str) -> None:
        super().__init__()
        layer = torch.nn.ModuleDict({"self_attn": torch.nn.ModuleDict({"q_proj": torch.nn.Linear(4, 4)})})
        layer["mlp"] = torch.nn.ModuleDict({"out_proj": torch.nn.Linear(4, 4)})
        (layer[block] if block else layer)["experts"] = NineExperts()
        self.layers = torch.nn.ModuleList([layer])
        self.config = SimpleNamespace(model_type="mixture")

    def get_decoder(self) -> torch.nn.Module:
        return self


def test_what_is_beside_experts_in_their_block_gets_no_adapter_and_the_layer_around_them_does() -> None:
    """A router or a shared expert may have the name of a layer that gets one elsewhere."""
    assert model_targets(Mixture("mlp")) == ["q_proj"]
    assert model_targets(Mixture("")) == ["q_proj", "out_proj"]
