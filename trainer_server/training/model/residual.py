"""The residual stream in fp32: the sum that every layer adds to, which a model in bf16 rounds after each of them.

That rounding is most of the difference between two computations of the same log-probabilities in bf16. On CPUs the
trainer and vLLM (by `art_precision.py`) both keep the sum in fp32. On GPUs neither does, to save memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def keep_fp32(base: Any) -> bool:
    """Makes a transformers model in half precision keep its residual stream in fp32; layers compute as before.

    Embeddings start the sum in fp32, and what norms make of it goes on in the model's own dtype. Gives False, and
    leaves the model as it was, where that changes nothing or cannot be: layers that read the sum without a norm.
    """
    narrow = base.dtype
    if narrow not in (torch.bfloat16, torch.float16):
        return False

    def to_fp32(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output.float()

    def to_narrow(_module: Any, _inputs: Any, output: Any) -> Any:
        return output.to(narrow) if torch.is_tensor(output) else tuple(part.to(narrow) for part in output)

    vocabulary = base.get_input_embeddings().weight.shape[0]
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, vocabulary, (1, 12))).to(base.device)
    training = base.training
    base.eval()
    with torch.no_grad():
        before = base(input_ids=tokens, use_cache=False).logits
        hooks = [base.get_input_embeddings().register_forward_hook(to_fp32)]
        for module in base.get_decoder().modules():
            if any(word in type(module).__name__ for word in ("Norm", "Rotary")):  # rotary angles take the sum's dtype
                hooks.append(module.register_forward_hook(to_narrow))
        try:
            after = base(input_ids=tokens, use_cache=False).logits
            kept = after.dtype == narrow and bool((after - before).norm() < 0.2 * before.norm())
        except Exception:  # of any kind: an architecture that cannot take it fails in a way of its own
            kept = False
    base.train(training)
    if not kept:
        for hook in hooks:
            hook.remove()
    return kept
