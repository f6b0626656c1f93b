"""A base model that trains in milliseconds."""

from __future__ import annotations

from pathlib import Path


def tiny_base(where: Path) -> Path:
    """Writes the model `base` into a directory and returns its path. Its tokens are character codes, as those of the
    small engine (`testbed.engine_app`)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    path = where / "base"
    LlamaForCausalLM(config).save_pretrained(path)
    return path
