"""The precision of a base model: fewer bits by bitsandbytes on NVIDIA GPUs, and the residual stream in fp32 on CPUs.

The residual stream is the sum that every layer adds to, which a model in bf16 rounds after each of them. That rounding
is most of the difference between two computations of the same log-probabilities in bf16. On CPUs the trainer and vLLM
(by `art_precision.py`) both keep the sum in fp32. On GPUs neither does, to save memory.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from transformers import BitsAndBytesConfig

from trainer_server.training.ranks import Ranks
from trainer_server.wire import TrainingError

Quantization = Literal["4bit", "8bit"]
_DEQUANTIZATION_METHODS = ("fp8", "mxfp4", "compressed-tensors")
"""Methods whose weights transformers can load as if they had never been quantized."""


def quantization_options(bits: Quantization, device: torch.device, dtype: torch.dtype, ranks: Ranks) -> dict[str, Any]:
    """Arguments of `from_pretrained`: NF4 with doubly quantised scales (arXiv:2305.14314), or LLM.int8
    (arXiv:2208.07339). Raises TrainingError where that is not possible."""
    if device.type != "cuda":
        raise TrainingError(f"a base model in {bits} needs an NVIDIA GPU; train without --quantization here")
    if ranks.shards_model:
        raise TrainingError("a base model in fewer bits cannot be divided: choose --quantization or --trainer-shard")
    if find_spec("bitsandbytes") is None:
        raise TrainingError("--quantization needs bitsandbytes: pip install bitsandbytes")
    four = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": dtype}
    config = BitsAndBytesConfig(load_in_4bit=True, **four) if bits == "4bit" else BitsAndBytesConfig(load_in_8bit=True)
    return {"quantization_config": config, "device_map": {"": torch.cuda.current_device()}}


def with_gradients(config: Any) -> Any:
    """A model's configuration, changed so that weights which are published in fewer bits are loaded in the dtype of the
    others: transformers' layers for them have no gradients."""
    quantization = getattr(config, "quantization_config", None)
    if isinstance(quantization, dict) and quantization.get("quant_method") in _DEQUANTIZATION_METHODS:
        quantization["dequantize"] = True
    return config


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
            close = after.dtype == narrow and bool((after - before).norm() < 0.2 * before.norm())
        except Exception:  # of any kind: an architecture that cannot take it fails in a way of its own
            close = False
    base.train(training)
    if not close:
        for hook in hooks:
            hook.remove()
    return close
