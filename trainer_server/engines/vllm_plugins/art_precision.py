"""What vLLM keeps in fp32, so that the log-probabilities it reports are those that the trainer computes.

Logits, everywhere: in bf16 each is off by up to 1/512 of itself. vLLM has that of its own (`--hf-overrides
'{"head_dtype": "float32"}'`), but refuses it for a quantized head, and on CPUs converts the whole head in every pass,
which takes longer than the pass. What the model's configuration or the user says of `head_dtype` holds.
The residual stream, on CPUs, where it costs nothing: what layers add up is not rounded after each of them.
The trainer's side is `training/model/head.py` and `precision.py` there. `ART_PRECISION=0` leaves vLLM as it is.

Shapes: N tokens, E hidden size, V vocabulary.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from art_kernels import NUMBERS, load, pack_head
from art_parts import harmless, have

LOGITS, RESIDUAL = "fp32 logits", "fp32 residual stream"
_LAYERS = "vllm.model_executor.layers"
PARTS = {
    LOGITS: (
        "vllm.config:get_current_vllm_config",
        f"{_LAYERS}.linear:UnquantizedLinearMethod",
        f"{_LAYERS}.vocab_parallel_embedding:UnquantizedEmbeddingMethod",
        f"{_LAYERS}.logits_processor:LogitsProcessor._apply_head(lm_head, hidden_states, embedding_bias)",
        f"{_LAYERS}.logits_processor:LogitsProcessor.self.head_dtype",
    ),
    RESIDUAL: (
        f"{_LAYERS}.layernorm:RMSNorm.forward_native(x, residual)",
        f"{_LAYERS}.layernorm:RMSNorm.self.variance_epsilon",
        f"{_LAYERS}.layernorm:RMSNorm.self.pass_weight_add",
        f"{_LAYERS}.layernorm:RMSNorm.self.variance_size_override",
        f"{_LAYERS}.layernorm:RMSNorm.self.weight",
        f"{_LAYERS}.layernorm:GemmaRMSNorm.forward_native(x, residual)",
        f"{_LAYERS}.layernorm:GemmaRMSNorm.self.variance_epsilon",
        f"{_LAYERS}.layernorm:GemmaRMSNorm.self.weight",
    ),
}
CPU_ONLY = (RESIDUAL,)

HALF = (torch.bfloat16, torch.float16)


def linear_fp32(x_NE: torch.Tensor, wide_VE: torch.Tensor) -> torch.Tensor:
    """x Wᵀ of bf16 numbers on a CPU, in fp32. wide_VE: the weights as fp32, which still are bf16 numbers: the products
    are computed as such, which is fast, and exact."""
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch's stubs lack it
    before, setting.fp32_precision = setting.fp32_precision, "bf16"
    try:
        return torch.nn.functional.linear(x_NE.float(), wide_VE)
    finally:
        setting.fp32_precision = before


def add_norm(
    x_NE: torch.Tensor, residual_NE: torch.Tensor, weight_E: torch.Tensor | None, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm of x + residual in x's dtype, and that sum in fp32."""
    fits = weight_E is not None and weight_E.dtype is x_NE.dtype and {x_NE.dtype, residual_NE.dtype} <= {*NUMBERS}
    if fits and (kernels := load()):
        assert weight_E is not None
        y_NE, sum_NE = kernels.add_norm(x_NE.contiguous(), residual_NE.contiguous(), weight_E, epsilon)
        return y_NE, sum_NE
    sum_NE = x_NE.float() + residual_NE.float()
    y_NE = sum_NE * torch.rsqrt(sum_NE.pow(2).mean(-1, keepdim=True) + epsilon)
    return (y_NE if weight_E is None else y_NE * weight_E.float()).to(x_NE.dtype), sum_NE


def in_one_pass(x: torch.Tensor) -> bool:
    """Whether `add_norm` computes it: bf16 and fp16, since vLLM would round; fp32 where that takes less time."""
    return x.dtype in HALF or (x.dtype is torch.float32 and load() is not None)


@harmless
def register() -> None:
    """Puts this into vLLM's layers. Called by vLLM in every engine process."""
    if os.environ.get("ART_PRECISION") == "0":
        return
    from vllm.platforms import current_platform

    if have(LOGITS, PARTS):
        _keep_logits()
    if current_platform.is_cpu() and have(RESIDUAL, PARTS):
        _keep_residual()


def _keep_logits() -> None:
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.logits_processor import LogitsProcessor
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    stock_init, stock_apply = LogitsProcessor.__init__, LogitsProcessor._apply_head

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock_init(self, *args, **kwargs)
        config = get_current_vllm_config().model_config
        self.art_keeps = config is not None and getattr(config.hf_config, "head_dtype", None) is None
        if self.art_keeps:
            self.head_dtype = torch.float32

    def apply_head(self: Any, lm_head: Any, hidden_states: torch.Tensor, bias: torch.Tensor | None) -> Any:
        if not self.art_keeps or hidden_states.dtype not in HALF:
            return stock_apply(self, lm_head, hidden_states, bias)
        if not isinstance(lm_head.quant_method, UnquantizedEmbeddingMethod | UnquantizedLinearMethod):
            return lm_head.quant_method.apply(lm_head, hidden_states, bias=bias)
        if hidden_states.device.type != "cpu" or hidden_states.dtype is not torch.bfloat16:
            return stock_apply(self, lm_head, hidden_states, bias)
        logits = _head(lm_head, hidden_states)
        return logits if bias is None else logits + bias.float()

    LogitsProcessor.__init__ = init
    LogitsProcessor._apply_head = apply_head


def _head(lm_head: Any, x_NE: torch.Tensor) -> torch.Tensor:
    """Logits in fp32 of a bf16 head, which is laid out for it on the first call."""
    kernels = load()
    if not hasattr(lm_head, "art_packed"):
        lm_head.art_packed = pack_head(lm_head.weight.detach()) if kernels and kernels.has_head else None
    if kernels and lm_head.art_packed is not None:
        logits_NV: torch.Tensor = kernels.head(x_NE.contiguous(), lm_head.art_packed)
        return logits_NV
    if not hasattr(lm_head, "art_wide"):
        lm_head.art_wide = lm_head.weight.detach().float()
    return linear_fp32(x_NE, lm_head.art_wide)


def _keep_residual() -> None:
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    stock, stock_gemma = RMSNorm.forward_native, GemmaRMSNorm.forward_native

    def forward_native(self: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is None or not in_one_pass(x) or self.variance_size_override is not None:
            return stock(self, x, residual)
        return add_norm(x, residual, self.weight.data if self.pass_weight_add else None, self.variance_epsilon)

    def forward_gemma(self: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is None or not in_one_pass(x):
            return stock_gemma(self, x, residual)
        return add_norm(x, residual, self.weight.data.float() + 1.0, self.variance_epsilon)

    RMSNorm.forward_native = forward_native
    GemmaRMSNorm.forward_native = forward_gemma
