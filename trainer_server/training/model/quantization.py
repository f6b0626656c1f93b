"""A base model in fewer bits, by bitsandbytes on NVIDIA GPUs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import torch
from transformers import BitsAndBytesConfig

from trainer_server.training.ranks import Ranks
from trainer_server.wire import TrainingError

Quantization = Literal["4bit", "8bit"]
_DEQUANTIZED = ("fp8", "mxfp4", "compressed-tensors")
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
    published = getattr(config, "quantization_config", None)
    if isinstance(published, dict) and published.get("quant_method") in _DEQUANTIZED:
        published["dequantize"] = True
    return config
