"""LoRA on the experts of a mixture: grouped products on GPUs, a loop over the experts elsewhere.

PEFT adds B·A to the weights of all experts in every pass, and keeps the sums for the backward pass, as large as the
experts. Here the tokens of each expert go through its own A and B.
Shapes: N tokens, K experts of a token, S = N·K pairs of a token and an expert, in the order of the experts, X experts,
E hidden size, I in, O out, R rank.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora.layer import ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer

PARAMETERS = ("experts.gate_up_proj", "experts.down_proj")
"""Ends of the names of the parameters that get an adapter. PEFT wraps the second around the first, and vLLM reads them
under PEFT's names, `experts.base_layer` and `experts`."""
_ALIGNMENT = 8
"""Numbers of bf16: sizes that grouped products take are multiples of it."""
_grouped_mm = getattr(torch.nn.functional, "grouped_mm", None)
"""None: this torch has none."""


def has_fused_experts(base: Any) -> bool:
    """Whether all experts of the model are those two parameters of their layer, without a norm behind them.

    Args:
        base: A causal language model of transformers, with or without adapters.
    """
    modules = [module for name, module in base.get_decoder().named_modules() if name.endswith(".experts")]
    experts = [module.get_base_layer() if isinstance(module, BaseTunerLayer) else module for module in modules]
    return bool(experts) and all(
        getattr(module, "has_gate", False) and not module.has_post_expert_norm and hasattr(module, "gate_up_proj")
        for module in experts
    )


def compute_experts(decoder: torch.nn.Module, adapter: str) -> None:
    """Makes the experts that PEFT has wrapped compute an adapter as here, or nothing where they do not have it."""
    for module in decoder.modules():
        if isinstance(module, ParamWrapper) and module.parameter_name == "down_proj":
            module.__class__ = _Experts
            module.adapter = adapter if adapter in module.lora_A else None  # type: ignore[assignment]


class _Experts(ParamWrapper):
    """PEFT's layer of `down_proj`, around that of `gate_up_proj`. adapter: None: the experts are computed alone."""

    adapter: str | None

    def forward(self, x_NE: torch.Tensor, index_NK: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
        experts: Any = self.get_base_layer()
        if self.adapter is None:
            y_NE: torch.Tensor = experts(x_NE, index_NK, weight_NK)
            return y_NE
        expert_S, order_S = index_NK.flatten().sort(stable=True)
        count_X = (index_NK.flatten()[:, None] == torch.arange(experts.num_experts, device=x_NE.device)).sum(0)
        x_SE = x_NE.index_select(0, order_S // index_NK.shape[1])
        gate_up = self._project(self.base_layer, experts, x_SE, expert_S, count_X)
        y_SE = self._project(self, experts, experts._apply_gate(gate_up), expert_S, count_X)
        y_SE = (y_SE * weight_NK.flatten()[order_S, None]).index_select(0, order_S.argsort())
        return y_SE.view(*index_NK.shape, -1).sum(1).to(x_NE.dtype)

    def _project(
        self, layer: Any, experts: Any, x_SI: torch.Tensor, expert_S: torch.Tensor, count_X: torch.Tensor
    ) -> torch.Tensor:
        """x·W + bias + x·Aᵀ·Bᵀ, each token with the matrices of its expert. layer: PEFT's, of one parameter."""
        weight = getattr(experts, layer.parameter_name)
        weight_XIO = weight if experts.is_transposed else weight.transpose(1, 2)
        a_XRI = layer.lora_A[self.adapter].weight.to(weight.dtype).view(len(weight), -1, x_SI.shape[1])
        b_ORX = layer.lora_B[self.adapter].weight.to(weight.dtype).view(weight_XIO.shape[2], -1, len(weight))
        b_XRO = b_ORX.permute(2, 1, 0).contiguous()
        low_SR = _product(x_SI, a_XRI.transpose(1, 2), count_X) * layer.scaling[self.adapter]
        y_SO = _product(x_SI, weight_XIO, count_X) + _product(low_SR, b_XRO, count_X)
        bias = getattr(experts, f"{layer.parameter_name}_bias", None)
        return y_SO if bias is None else y_SO + bias[expert_S]


_Experts.__name__ = ParamWrapper.__name__  # by which PEFT finds what it has wrapped, when another adapter comes


def _product(x_SI: torch.Tensor, w_XIO: torch.Tensor, count_X: torch.Tensor) -> torch.Tensor:
    """The rows of each expert times its matrix."""
    aligned = all(size % _ALIGNMENT == 0 for size in w_XIO.shape[1:])
    if x_SI.is_cuda and x_SI.dtype == torch.bfloat16 and aligned and _grouped_mm is not None:
        y_SO: torch.Tensor = _grouped_mm(x_SI, w_XIO, offs=count_X.cumsum(0).int())
        return y_SO
    parts = zip(x_SI.split(count_X.tolist()), w_XIO.unbind(), strict=True)
    return torch.cat([x @ w for x, w in parts])
