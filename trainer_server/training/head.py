"""Log-probabilities of given tokens without ever holding all logits: the language model's head, chunk by chunk.

Shapes: R read-outs, C read-outs of a chunk, E hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

CHUNK = 256
"""Read-outs whose logits exist at once: 50 MB in fp32 for 49,152 tokens."""


class HeadLogprobs(torch.autograd.Function):
    """(hidden_RE, weight_VE, target_R, temperature_R) → log-probability of each target, and entropy.

    Both fp32, (R,), in nats, under p = softmax(logits / temperature). The backward pass computes the logits again: for
    a read-out whose log-probability has gradient g and whose entropy H has gradient h,
    dlogits = (g · (onehot(target) − p) − h · p · (log p + H)) / temperature.
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
        entropy_R = torch.cat(entropies)
        ctx.save_for_backward(hidden_RE, weight_VE, target_R, temperature_R, torch.cat(lses), entropy_R)
        ctx.set_materialize_grads(False)
        return torch.cat(logps), entropy_R

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad_R: torch.Tensor | None, entropy_grad_R: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden_RE, weight_VE, target_R, temperature_R, lse_R, entropy_R = ctx.saved_tensors
        grads = []
        for part in _chunks(len(target_R)):
            d_CV = _logits(hidden_RE[part], weight_VE, temperature_R[part]).sub_(lse_R[part, None])
            scale_C = torch.zeros_like(lse_R[part]) if grad_R is None else grad_R[part] / temperature_R[part]
            if entropy_grad_R is None:
                d_CV.exp_().mul_(-scale_C[:, None])
            else:
                bonus_C1 = (entropy_grad_R[part] / temperature_R[part])[:, None]
                p_CV = d_CV.exp()
                d_CV.add_(entropy_R[part, None]).mul_(-bonus_C1).sub_(scale_C[:, None]).mul_(p_CV)
            d_CV.scatter_add_(1, target_R[part, None], scale_C[:, None])
            grads.append(d_CV.to(weight_VE.dtype) @ weight_VE)
        return torch.cat(grads).to(hidden_RE.dtype), None, None, None


def _chunks(count: int) -> list[slice]:
    return [slice(at, min(at + CHUNK, count)) for at in range(0, count, CHUNK)]


def _logits(hidden_CE: torch.Tensor, weight_VE: torch.Tensor, temperature_C: torch.Tensor) -> torch.Tensor:
    return (hidden_CE @ weight_VE.T).float().div_(temperature_C[:, None])
