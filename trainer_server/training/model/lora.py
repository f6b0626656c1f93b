"""LoRA's linear layers as few products as can be: computed in the base model's dtype, gradients in the master's.

PEFT computes fp32 adapters in fp32 and casts activations back and forth; here the masters are cast, which are small,
all of them at once for each pass. Layers that read the same input are computed as one: their frozen weights lie one
behind another, A is stacked, and B is block-diagonal.
Shapes: N tokens, I in, O out of all layers of a group, R rank times layers of a group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
from peft import LoraConfig
from peft.tuners.lora.layer import Linear
from peft.tuners.tuners_utils import BaseTunerLayer

from trainer_server.training.model.experts import PARAMETERS, compute_experts, has_fused_experts
from trainer_server.training.model.recurrent import LAYERS
from trainer_server.wire import PolicySpec, TrainingError
from trainer_server.wire.policies import (
    ABSORBED_TARGET,
    ATTENTION_TARGETS,
    EXPERTS,
    RECURRENT_TARGETS,
    TARGETS,
    in_order,
)

_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of a module that read the same input in most models."""
_REFUSED_BY_PEFT = {"nemotron_h": ("out_proj",), "falcon_h1": ("out_proj",)}
"""By type of model: PEFT knows kernels of these that read the layer's weight past an adapter."""
_ADAPTER = re.compile(r"\.lora_|\.base_layer$")
"""Within the names of what PEFT puts into a layer."""
_IN_LAYER = re.compile(r"\.\d+\..*(?<!\d)$")


def lora_config(base: Any, spec: PolicySpec) -> LoraConfig:
    """PEFT's configuration of a policy's LoRA on this base model.

    Raises:
        TrainingError: As `adapted_targets`.
    """
    targets = adapted_targets(base, spec.targets)
    return LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,  # type: ignore[arg-type]  # PEFT takes floats
        target_modules=[target for target in targets if target != EXPERTS],
        target_parameters=list(PARAMETERS) if EXPERTS in targets else None,
        exclude_modules=_outside_decoder(base, targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def adapted_targets(base: Any, targets: Sequence[str]) -> list[str]:
    """The targets that get an adapter in this model, of those that it has; all of `model_targets` by default.
    `EXPERTS` are one where their weights are two parameters of a layer.

    Raises:
        TrainingError: There are none, or a name is neither common nor that of a layer of this model.
    """
    own = model_targets(base)
    known = [*own, EXPERTS] if EXPERTS in targets and has_fused_experts(base) else own
    unknown = [target for target in targets if target not in known and target not in TARGETS]
    present = own if tuple(targets) == TARGETS else [target for target in known if target in targets]
    if present and not unknown:
        return present
    subject = f"targets={', '.join(unknown or targets)}: {type(base).__name__}"
    among = f"create the policy with targets among {', '.join(own)}" if own else "none of its layers gets an adapter"
    if has_experts(base) and not unknown:
        raise TrainingError(f"{subject} is a mixture of experts, which get no adapter, nor do its MLPs: {among}")
    raise TrainingError(f"{subject} has no layers of these names that get an adapter: {among}")


def model_targets(base: Any) -> list[str]:
    """Names of the linear layers of the decoder that get an adapter.

    Left out are:
    - experts, routers and all MLPs of a mixture of experts. PEFT would turn the names of MLP layers into parameters of
      all experts, of twice the rank, which vLLM takes on some GPUs only, and would leave out the dense layers;
    - layers of recurrent mixers that `recurrent.LAYERS` does not have: their kernels read weights past an adapter;
    - names that PEFT refuses for an architecture, or that other modules have too;
    - `ABSORBED_TARGET`;
    - what is in no layer of the decoder, such as its head.

    Args:
        base: With or without adapters.
    """
    modules = {name: module for name, module in base.get_decoder().named_modules() if not _ADAPTER.search(name)}
    left_out = {ABSORBED_TARGET, *(_REFUSED_BY_PEFT.get(base.config.model_type, ()))}
    outside = tuple(f"{name}." for name in [*_expert_blocks(modules), *_unknown_mixers(modules)])
    names = set()
    for name, module in modules.items():
        last = name.rpartition(".")[2]
        layer = module.get_base_layer() if isinstance(module, BaseTunerLayer) else module
        if not isinstance(layer, torch.nn.Linear) or f"{name}.".startswith(outside):
            left_out.add(last)
        elif _IN_LAYER.search(name):
            names.add(last)
    if has_experts(base):
        names &= {*ATTENTION_TARGETS, *RECURRENT_TARGETS}
    return list(in_order(names - left_out))


def _expert_blocks(modules: Mapping[str, Any]) -> Iterator[str]:
    """Names of the modules that have experts in place of an MLP, or of experts that a layer has beside one."""
    for name, module in modules.items():
        if _is_experts(name, module):
            block = name.rpartition(".")[0]
            yield name if block.rpartition(".")[2].isdigit() else block


def _unknown_mixers(modules: Mapping[str, Any]) -> Iterator[str]:
    """Names of the modules that carry a state from token to token, and are not in `recurrent.LAYERS`."""
    for name, module in modules.items():
        carries = any(isinstance(child, torch.nn.Conv1d) for child in module.children()) or hasattr(module, "A_log")
        if name and carries and type(module).__name__ not in LAYERS:
            yield name


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
    return sorted(names - set(model_targets(base)))


def has_experts(base: Any) -> bool:
    """Whether the model is a mixture of experts."""
    return any(_is_experts(name, module) for name, module in base.named_modules())


def _is_experts(name: str, module: Any) -> bool:
    return name.endswith(".experts") or type(module).__name__.endswith("Experts")


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
    """y = x·Wᵀ + bias + x·Aᵀ·Bᵀ, and its gradients by x, A and B. The scale is in B."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NI: torch.Tensor,
        w_OI: torch.Tensor,
        bias_O: torch.Tensor | None,
        a_RI: torch.Tensor,
        b_OR: torch.Tensor,
    ) -> torch.Tensor:
        low_NR = x_NI @ a_RI.T
        ctx.save_for_backward(x_NI, w_OI, a_RI, b_OR, low_NR)
        return _add_product(torch.nn.functional.linear(x_NI, w_OI, bias_O), low_NR, b_OR.T)

    @staticmethod
    def backward(ctx: Any, grad_NO: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        x_NI, w_OI, a_RI, b_OR, low_NR = ctx.saved_tensors
        grad_low_NR = grad_NO @ b_OR
        grad_x = _add_product(grad_NO @ w_OI, grad_low_NR, a_RI) if ctx.needs_input_grad[0] else None
        return grad_x, None, None, grad_low_NR.T @ x_NI, grad_NO.T @ low_NR


def _add_product(y: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """y + left · right. In place, which saves a copy of y: but not where torch.compile traces it. Torch 2.11 makes
    gradients of exactly 0 of that, without an error."""
    return (y.addmm if torch.compiler.is_compiling() else y.addmm_)(left, right)


class LinearGroup:
    """Linear layers with adapters that read the same input. The first one that is called computes them all.

    Where they turn out to read several inputs, each computes itself from then on.

    a_RI, b_OR: the adapters of the pass that is computed, in the model's dtype, see `FusedLoRA`.
    """

    a_RI: torch.Tensor
    b_OR: torch.Tensor

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = list(layers)
        self._bases: list[Any] = [layer.get_base_layer() for layer in layers]
        self._sizes = [base.out_features for base in self._bases]
        self._weight_OI: torch.Tensor | None = None
        self._bias_O: torch.Tensor | None = None
        self._apart = len(layers) == 1
        self._input: torch.Tensor | None = None
        self._outputs: dict[int, torch.Tensor] = {}
        for at, layer in enumerate(layers):
            layer.__class__ = _GroupedLinear  # not its `forward`: torch would compile each layer's own function anew
            layer.group, layer.place = self, at  # type: ignore[assignment]

    def tie(self) -> None:
        """Moves the frozen weights behind one another in memory; the layers have views of them."""
        if len(self.layers) > 1:
            self._weight_OI = torch.cat([base.weight.data for base in self._bases])
            torch._dynamo.mark_static(self._weight_OI)
            for base, weight in zip(self._bases, self._weight_OI.split(self._sizes), strict=True):
                base.weight.data = weight
            if self._bases[0].bias is not None:
                self._bias_O = torch.cat([base.bias.data for base in self._bases])

    def untie(self) -> None:
        """Lets go of the frozen weights, which are about to be moved one by one, and of what a pass has left."""
        self._weight_OI = self._bias_O = None
        self.a_RI = self.b_OR = torch.empty(0)
        self.forget()

    def forget(self) -> None:
        """Lets go of what a pass has left that failed, or that did not ask for all outputs."""
        self._input, self._outputs = None, {}

    def project(self, at: int, x: torch.Tensor) -> torch.Tensor:
        if x is self._input and at in self._outputs:
            y = self._outputs.pop(at)
            self._input = x if self._outputs else None
            return y
        if self._outputs:  # of another input
            self._apart = True
            self.forget()
        if self._apart:
            return self._compute(x, at)
        outputs: dict[int, torch.Tensor] = dict(enumerate(torch.split(self._compute(x, None), self._sizes, -1)))
        if len(outputs) == len(_SIBLINGS[0]):  # values outlive queries and keys, which as a view they would keep
            outputs[2] = outputs[2].contiguous()
        y = outputs.pop(at)
        self._input, self._outputs = x, outputs
        return y

    def _compute(self, x: torch.Tensor, at: int | None) -> torch.Tensor:
        """The outputs of all layers, one behind another, or of one."""
        if at is None:
            weight, bias, a, b = self._weight_OI, self._bias_O, self.a_RI, self.b_OR
        elif len(self.layers) == 1:
            weight, bias, a, b = self._bases[0].weight, self._bases[0].bias, self.a_RI, self.b_OR
        else:
            start, rank = sum(self._sizes[:at]), len(self.a_RI) // len(self.layers)
            weight, bias = self._bases[at].weight, self._bases[at].bias
            a = self.a_RI[at * rank : (at + 1) * rank]
            b = self.b_OR[start : start + self._sizes[at], at * rank : (at + 1) * rank]
        y: torch.Tensor = _LoRALinear.apply(x.reshape(-1, x.shape[-1]), weight, bias, a, b)
        return y.view(*x.shape[:-1], -1)


class _GroupedLinear(Linear):
    """PEFT's layer, computed by its group."""

    group: LinearGroup
    place: int

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        y: torch.Tensor = self.group.project(self.place, x)
        return y


class _Cast(torch.autograd.Function):
    """fp32 masters → A and B of every group in the model's dtype, B with the scale; and the gradients back.

    A handful of operations for all layers together. groups: how many layers each group has. The masters come group by
    group, first all A of it, then all B.
    """

    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, scale: float, groups: Sequence[int], *masters: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.scale, ctx.groups, ctx.shapes = scale, groups, [master.shape for master in masters]
        ctx.master_dtype = masters[0].dtype
        ctx.set_materialize_grads(False)
        shapes = list(_stacks(groups, ctx.shapes))
        flat = torch.zeros(sum(rows * columns for rows, columns in shapes), dtype=dtype, device=masters[0].device)
        parts = flat.split([rows * columns for rows, columns in shapes])
        stacks = tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        blocks = list(_blocks(groups, ctx.shapes, stacks))
        torch._foreach_copy_([block for block, _ in blocks], list(masters))
        torch._foreach_mul_([block for block, is_b in blocks if is_b], scale)
        return stacks

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        sizes = [shape.numel() for shape in ctx.shapes]
        device = next(grad.device for grad in grads if grad is not None)
        flat = torch.empty(sum(sizes), dtype=ctx.master_dtype, device=device)
        masters = [part.view(shape) for part, shape in zip(flat.split(sizes), ctx.shapes, strict=True)]
        blocks = list(_blocks(ctx.groups, ctx.shapes, grads))
        pairs = [(master, block) for master, (block, _) in zip(masters, blocks, strict=True) if block is not None]
        torch._foreach_copy_([master for master, _ in pairs], [block for _, block in pairs])
        scaled = [master for master, (_, is_b) in zip(masters, blocks, strict=True) if is_b]
        torch._foreach_mul_(scaled, ctx.scale)
        result = (None if block is None else master for master, (block, _) in zip(masters, blocks, strict=True))
        return None, None, None, *result


def _stacks(groups: Sequence[int], shapes: Sequence[torch.Size]) -> Iterator[tuple[int, int]]:
    """The shapes of A and B of each group."""
    at = 0
    for count in groups:
        rank, inputs = shapes[at]
        yield count * rank, inputs
        yield sum(shape[0] for shape in shapes[at + count : at + 2 * count]), count * rank
        at += 2 * count


def _blocks(groups: Sequence[int], shapes: Sequence[torch.Size], stacks: Sequence[Any]) -> Iterator[tuple[Any, bool]]:
    """The part of the stacks of every master, in their order, and whether it is one of B; None where there is none."""
    at = 0
    for group, count in enumerate(groups):
        a, b = stacks[2 * group], stacks[2 * group + 1]
        rank = shapes[at][0]
        for place in range(count):
            yield None if a is None else a[place * rank : (place + 1) * rank], False
        start = 0
        for place in range(count):
            stop = start + shapes[at + count + place][0]
            yield None if b is None else b[start:stop, place * rank : (place + 1) * rank], True
            start = stop
        at += 2 * count


class FusedLoRA:
    """Computes an adapter of a PEFT model (no dropout, unmerged) by groups of layers, cast once for each pass.

    Layers that compute otherwise than `torch.nn.Linear` keep PEFT's computation, and so do those without this adapter.

    Args:
        model: With the adapter, on the device that computes.
        adapter: Its name.
    """

    def __init__(self, model: Any, adapter: str) -> None:
        self._groups: list[LinearGroup] = []
        self._masters: list[torch.Tensor] = []
        decoder = model.get_base_model().get_decoder()
        compute_experts(decoder, adapter)
        for parent in decoder.modules():
            children = {name: layer for name, layer in parent.named_children() if _is_plain(layer)}
            for layer in children.values():
                layer.__class__ = Linear
            layers = {name: layer for name, layer in children.items() if adapter in layer.lora_A}
            for names in (*_SIBLINGS, *((name,) for name in layers)):
                siblings = [layers.pop(name) for name in names if name in layers]
                alike = [siblings] if _alike(siblings) else [[layer] for layer in siblings]
                self._groups += [LinearGroup(layers_of_group) for layers_of_group in alike]
        for group in self._groups:
            self._masters += [layer.lora_A[adapter].weight for layer in group.layers]
            self._masters += [layer.lora_B[adapter].weight for layer in group.layers]
        self._has_tied = False
        self._hook = decoder.register_forward_pre_hook(lambda *_: self._cast())
        if self._groups:
            first = self._groups[0].layers[0]
            self._dtype, self._scale = first.get_base_layer().weight.dtype, first.scaling[adapter]

    def remove(self) -> None:
        """Ends the computation of this adapter; another may take its place."""
        self._hook.remove()
        self.untie()

    def tie(self) -> None:
        """Moves the frozen weights of each group together. The first pass does it if nobody did."""
        if not self._has_tied:
            for group in self._groups:
                group.tie()
            self._has_tied = True

    def untie(self) -> None:
        """Before the model is moved."""
        for group in self._groups:
            group.untie()
        self._has_tied = False

    def _cast(self) -> None:
        self.tie()
        counts = [len(group.layers) for group in self._groups]
        stacks = iter(_Cast.apply(self._dtype, self._scale, counts, *self._masters) if counts else ())
        for group in self._groups:
            group.forget()
            group.a_RI, group.b_OR = next(stacks), next(stacks)
            torch._dynamo.mark_static(group.a_RI)
            torch._dynamo.mark_static(group.b_OR)


def _is_plain(layer: Any) -> bool:
    return isinstance(layer, Linear) and type(layer.get_base_layer()) is torch.nn.Linear


def _alike(layers: Sequence[Any]) -> bool:
    """Whether layers can be computed as one: whole weights, not those that FSDP divides, of one kind."""
    bases = [layer.get_base_layer() for layer in layers]
    kinds = {(type(base.weight.data), base.in_features, base.bias is None) for base in bases}
    return len(kinds) == 1 and kinds.pop()[0] is torch.Tensor
