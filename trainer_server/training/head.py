"""Log-probabilities of given tokens without ever holding all logits: the language model's head, chunk by chunk.

Shapes: R read-outs, C read-outs of a chunk, E hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

CHUNK = 256
"""Read-outs whose logits exist at once: 50 MB in fp32 for 49,152 tokens."""


class HeadLogprobs(torch.autograd.Function):
    """(hidden_RE, weight_VE, target_R, temperature_R) → log-probability of each target, and entropy (no gradient).

    Both fp32, (R,), in nats, under softmax(logits / temperature). The backward pass computes the logits again: for one
    read-out with gradient g, dlogits = g · (onehot(target) − softmax) / temperature.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_RE: torch.Tensor, weight_VE: torch.Tensor, target_R: torch.Tensor, temperature_R: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logps, entropies, lses = [], [], []
        for part in _chunks(len(target_R)):
            z_CV = _logits(hidden_RE[part], weight_VE, temperature_R[part])
            chosen_C = z_CV.gather(1, target_R[part, None])[:, 0]
            lse_C = z_CV.logsumexp(1)
            p_CV = (z_CV - lse_C[:, None]).exp_()
            logps.append(chosen_C - lse_C)
            entropies.append(lse_C - torch.linalg.vecdot(p_CV, z_CV))
            lses.append(lse_C)
        ctx.save_for_backward(hidden_RE, weight_VE, target_R, temperature_R, torch.cat(lses))
        entropy_R = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy_R)
        return torch.cat(logps), entropy_R

    @staticmethod
    def backward(ctx: Any, grad_R: torch.Tensor, _entropy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        hidden_RE, weight_VE, target_R, temperature_R, lse_R = ctx.saved_tensors
        grads = []
        for part in _chunks(len(target_R)):
            d_CV = _logits(hidden_RE[part], weight_VE, temperature_R[part])
            scale_C = grad_R[part] / temperature_R[part]
            d_CV.sub_(lse_R[part, None]).exp_().mul_(-scale_C[:, None])
            d_CV.scatter_add_(1, target_R[part, None], scale_C[:, None])
            grads.append(d_CV.to(weight_VE.dtype) @ weight_VE)
        return torch.cat(grads).to(hidden_RE.dtype), None, None, None


def _chunks(count: int) -> list[slice]:
    return [slice(at, min(at + CHUNK, count)) for at in range(0, count, CHUNK)]


def _logits(hidden_CE: torch.Tensor, weight_VE: torch.Tensor, temperature_C: torch.Tensor) -> torch.Tensor:
    return (hidden_CE @ weight_VE.T).float().div_(temperature_C[:, None])
