"""Log-probabilities of given tokens without ever holding all logits: the language model's head, chunk by chunk.

Shapes: R read-outs, C read-outs of a chunk, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainer_server.training.model.memory import free_memory

CHUNK = 128
"""Read-outs whose logits exist at once on CPUs: 25 MB in fp32 for 49,152 tokens, which a cache can hold."""
_GPU_CHUNKS = (128, 4096)
"""Least and most read-outs whose logits exist at once on GPUs, where many are fast."""
_GPU_SHARE = 8
"""A chunk takes one part of so many of the memory that is free."""
_ARRAYS = 4
"""Arrays of a chunk's logits in fp32 that exist at once."""
_FP32_ROWS = 2048
"""Rows of the head that exist in fp32 at once: 5 MB of 576 numbers each. As a whole it would be 113 MB, and to make it
takes longer than the logits of a chunk."""


def projection(weight_VE: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """hidden_CE → logits_CV in fp32, whatever the model computes in.

    A logit of 16 in bf16 is off by up to 1/32, in nats, on the trainer's side and once more on the sampler's. What is
    multiplied stays bf16, which is fast; it is the sums that are kept. `art_precision.py` does the same in vLLM.
    """
    if weight_VE.dtype not in (torch.bfloat16, torch.float16):
        return lambda hidden_CE: (hidden_CE @ weight_VE.T).float()
    if weight_VE.is_cuda:
        return lambda hidden_CE: torch.mm(hidden_CE, weight_VE.T, out_dtype=torch.float32)
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch's stubs lack it

    def on_cpu(hidden_CE: torch.Tensor) -> torch.Tensor:
        wide_CE = hidden_CE.float()
        logits_CV = wide_CE.new_empty(len(wide_CE), len(weight_VE))
        before, setting.fp32_precision = setting.fp32_precision, "bf16" if weight_VE.dtype is torch.bfloat16 else "ieee"
        try:
            for start in range(0, len(weight_VE), _FP32_ROWS):
                part = slice(start, start + _FP32_ROWS)
                torch.mm(wide_CE, weight_VE[part].float().T, out=logits_CV[:, part])
        finally:
            setting.fp32_precision = before
        return logits_CV

    return on_cpu


def chunk_size(vocabulary: int, free: int) -> int:
    """Read-outs of a chunk on a GPU with so many bytes free."""
    least, most = _GPU_CHUNKS
    return max(least, min(most, free // _GPU_SHARE // (_ARRAYS * 4 * vocabulary)))


def logit_cap(config: Any) -> float | None:
    """The bound that a model's head puts its logits in by tanh (Gemma 4); None: they are as the product has them.

    Args:
        config: Of the text model.
    """
    cap: float | None = getattr(config, "final_logit_softcapping", None)
    return cap


class HeadLogprobs(torch.autograd.Function):
    """(hidden_RE, weight_VE, target_R, temperature_R, entropy_gradient, cap) → log-probability of each target, and
    entropy.

    Both fp32, (R,), in nats, under softmax(logits / temperature). The derivative of each read-out's figures by its
    hidden state is taken while its logits are there: the backward pass only scales it, and computes no logits again.
    By the logits z it is, with p = softmax(z / temperature) and H the entropy,
        (onehot(target) − p) / temperature    and    −p·(log p + H) / temperature;
    the second only when asked for (entropy_gradient): it costs one more matrix product. With a cap, the logits are
    cap·tanh(head's / cap), and the derivative by the head's has the factor 1 − tanh².
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_RE: torch.Tensor,
        weight_VE: torch.Tensor,
        target_R: torch.Tensor,
        temperature_R: torch.Tensor,
        entropy_gradient: bool = False,
        cap: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logps, entropies, by_logp, by_entropy = [], [], [], []
        project = projection(weight_VE)
        size = chunk_size(len(weight_VE), free_memory(weight_VE.device)) if weight_VE.is_cuda else CHUNK
        for start in range(0, len(target_R), size):
            part = slice(start, start + size)
            scale_C1, target_C1 = temperature_R[part, None], target_R[part, None]
            z_CV = project(hidden_RE[part])
            if cap is not None:
                z_CV.div_(cap).tanh_()
                by_head_CV = 1 - z_CV.square()
                z_CV.mul_(cap)
            z_CV.div_(scale_C1)
            logp_CV = z_CV.log_softmax(1)
            p_CV = torch.softmax(z_CV, 1, out=z_CV)  # the exponential of logp_CV, which takes four times as long
            entropy_C = -torch.linalg.vecdot(p_CV, logp_CV)
            logps.append(logp_CV.gather(1, target_C1)[:, 0])
            entropies.append(entropy_C)
            if not ctx.needs_input_grad[0]:
                continue
            if entropy_gradient:
                slope_CV = logp_CV.add_(entropy_C[:, None]).mul_(p_CV).div_(-scale_C1)
                if cap is not None:
                    slope_CV.mul_(by_head_CV)
                by_entropy.append(slope_CV.to(weight_VE.dtype) @ weight_VE)
            p_CV.scatter_add_(1, target_C1, torch.full_like(scale_C1, -1.0)).div_(-scale_C1)
            if cap is not None:
                p_CV.mul_(by_head_CV)
            by_logp.append(p_CV.to(weight_VE.dtype) @ weight_VE)
        entropy_R = torch.cat(entropies)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_R)
        if by_logp:
            ctx.save_for_backward(torch.cat(by_logp), *([torch.cat(by_entropy)] if entropy_gradient else []))
        return torch.cat(logps), entropy_R

    @staticmethod
    def backward(ctx: Any, grad_R: torch.Tensor, entropy_grad_R: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        grads = (grad_R, entropy_grad_R)
        parts = [d_RE * g_R[:, None] for d_RE, g_R in zip(ctx.saved_tensors, grads, strict=False)]
        return sum(parts[1:], parts[0]).to(ctx.saved_tensors[0].dtype), None, None, None, None, None
