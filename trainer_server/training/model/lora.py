"""LoRA's linear layer as one autograd function: computed in the base model's dtype, gradients in the master's.

PEFT computes fp32 adapters in fp32 and casts activations back and forth; here the masters are cast, which are small.
Shapes: N tokens, I in, O out, R rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.lora.layer import Linear

from trainer_server.wire import PolicySpec, TrainingError
from trainer_server.wire.policies import ATTENTION_TARGETS, MLP_TARGETS, TARGETS


def lora_config(base: Any, spec: PolicySpec) -> LoraConfig:
    """PEFT's configuration of a policy's LoRA on this base model.

    Raises:
        TrainingError: As `adapted_targets`.
    """
    targets = adapted_targets(base, spec.targets)
    return LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,  # type: ignore[arg-type]  # PEFT takes floats
        target_modules=targets,
        exclude_modules=_outside_decoder(base, targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def adapted_targets(base: Any, targets: Sequence[str]) -> list[str]:
    """The targets that get an adapter in this model, of those that it has.

    In a mixture of experts these are the layers of attention. PEFT would turn the names of MLP layers into parameters
    of all experts, of twice the rank, which vLLM takes on some GPUs only, and would leave out the dense layers.

    Raises:
        TrainingError: There are none.
    """
    names = {name.rpartition(".")[2] for name, _ in base.get_decoder().named_modules()}
    left_out = MLP_TARGETS if has_experts(base) else ()
    if present := [target for target in targets if target in names and target not in left_out]:
        return present
    subject = f"targets={', '.join(targets)}: {type(base).__name__}"
    if left_out:
        raise TrainingError(
            f"{subject} is a mixture of experts, of which only the layers of attention get an adapter: create the "
            f"policy with targets among {', '.join(name for name in ATTENTION_TARGETS if name in names)}"
        )
    raise TrainingError(f"{subject} has no layers of these names")


def unadapted_layers(base: Any) -> list[str]:
    """Names of linear layers of the decoder that no policy adapts, whatever its targets are; experts are left out.

    Args:
        base: A model without adapters.
    """
    names = {
        name.rpartition(".")[2]
        for name, module in base.get_decoder().named_modules()
        if isinstance(module, torch.nn.Linear) and ".experts." not in name
    }
    return sorted(names - set(TARGETS))


def has_experts(base: Any) -> bool:
    """Whether the model is a mixture of experts."""
    return any(name.endswith(".experts") for name, _ in base.named_modules())


def _outside_decoder(base: Any, targets: Sequence[str]) -> str | None:
    """A pattern for all modules outside the text decoder, where layers of these names exist outside it; else None.

    The vision tower of a multimodal model is not trained on text.
    """
    modules, text = dict(base.named_modules()), base.get_decoder()
    (decoder,) = (name for name, module in modules.items() if module is text)
    names = [name for name in modules if name.rpartition(".")[2] in targets]
    if not decoder or all(name.startswith(f"{decoder}.") for name in names):
        return None
    return rf"(?!{re.escape(decoder)}\.).*"


class _LoRALinear(torch.autograd.Function):
    """y = x·Wᵀ + scale · x·Aᵀ·Bᵀ, and its gradients by x, A and B."""

    @staticmethod
    def forward(
        ctx: Any, x_NI: torch.Tensor, w_OI: torch.Tensor, a_RI: torch.Tensor, b_OR: torch.Tensor, scale: float
    ) -> torch.Tensor:
        a, b = a_RI.to(x_NI.dtype), b_OR.to(x_NI.dtype)
        low_NR = x_NI @ a.T
        ctx.save_for_backward(x_NI, w_OI, a, b, low_NR)
        ctx.scale, ctx.master = scale, a_RI.dtype
        return _add_product(x_NI @ w_OI.T, low_NR, b.T, scale)

    @staticmethod
    def backward(ctx: Any, grad_NO: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        x_NI, w_OI, a, b, low_NR = ctx.saved_tensors
        grad_low_NR = (grad_NO @ b) * ctx.scale
        grad_x = _add_product(grad_NO @ w_OI, grad_low_NR, a) if ctx.needs_input_grad[0] else None
        grad_a = (grad_low_NR.T @ x_NI).to(ctx.master)
        grad_b = (grad_NO.T @ low_NR).to(ctx.master) * ctx.scale
        return grad_x, None, grad_a, grad_b, None


def _add_product(y: torch.Tensor, left: torch.Tensor, right: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """y + scale · left · right. In place, which saves a copy of y: but not where torch.compile traces it. Torch 2.11
    makes gradients of exactly 0 of that, without an error."""
    add = y.addmm if torch.compiler.is_compiling() else y.addmm_
    return add(left, right, alpha=scale)


def _forward(self: Linear, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    (name,) = self.active_adapters
    base: Any = self.get_base_layer()
    y: torch.Tensor
    if name not in self.lora_A:  # a layer that only another shape adapts
        y = base(x)
        return y
    y = _LoRALinear.apply(
        x.reshape(-1, x.shape[-1]), base.weight, self.lora_A[name].weight, self.lora_B[name].weight, self.scaling[name]
    )
    if base.bias is not None:
        y = y + base.bias
    return y.view(*x.shape[:-1], -1)


def use_fused_lora(model: torch.nn.Module) -> None:
    """Puts the fused computation into LoRA layers of a PEFT model (no dropout, unmerged, one active adapter).

    Layers that compute otherwise than `torch.nn.Linear` keep PEFT's.
    """
    for layer in model.modules():
        if isinstance(layer, Linear) and type(layer.get_base_layer()) is torch.nn.Linear:
            layer.forward = MethodType(_forward, layer)  # type: ignore[method-assign]
