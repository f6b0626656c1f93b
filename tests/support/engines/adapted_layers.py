"""Models with random weights and few layers, of which tests try each kind of linear layer alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from testbed.families.models import GATED_DELTA, GRANITE_HYBRID

SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 128**-0.5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 128}
FAMILIES: dict[str, dict[str, Any]] = {
    # As checkpoints have it, with a vision tower: the trainer and vLLM load other classes of it.
    "Qwen3.5": {
        "model_type": "qwen3_5",
        "text_config": {**SIZES, **GATED_DELTA},
        "vision_config": {**VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": []},
        **dict(zip(("image_token_id", "video_token_id", "vision_start_token_id"), range(250, 253), strict=True)),
    },
    "Granite hybrid": {
        "model_type": "granitemoehybrid",
        **SIZES,
        **GRANITE_HYBRID,
    },
    "Phi-3": {"model_type": "phi3", **SIZES, "num_hidden_layers": 2},
}


def family_model(config: dict[str, Any], where: Path) -> Path:
    """Writes a model with random weights."""
    values = dict(config)
    configuration = AutoConfig.for_model(values.pop("model_type"), **values)
    auto: Any = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    torch.manual_seed(0)
    auto.from_config(configuration).to(torch.bfloat16).save_pretrained(where)
    return where
