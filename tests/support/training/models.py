"""Tiny models of the architectures that are trained, and stock models (transformers, PEFT) of the same weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PretrainedConfig, Qwen3Config

from trainer_server.training.model.lora import adapted_targets
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import Packing, pack
from trainer_server.wire import PolicySpec

Data = list[tuple[list[int], list[int]]]


SPEC = PolicySpec(name="tiny")


VOCABULARY = 32


PLAIN = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


SIZES = {**PLAIN, "head_dim": 8}


ARCHITECTURES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES),
    "mistral_sliding": MistralConfig(**SIZES, sliding_window=5),
}


def tiny_model(where: Path, config: PretrainedConfig) -> PolicyModel:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(where)
    model = PolicyModel(str(where), dtype=torch.float32, device="cpu")
    model.initialise(PolicySpec(name="tiny"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model


@dataclass(frozen=True, slots=True)
class Pair:
    """Our model and the stock one, with the same weights."""

    ours: PolicyModel
    stock: Any


def pair(config: PretrainedConfig, where: Path, spec: PolicySpec = SPEC) -> Pair:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(where)
    ours = PolicyModel(str(where), dtype=torch.float32, device="cpu")
    ours.initialise(spec)
    base = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
    experts = ["experts.gate_up_proj", "experts.down_proj"] if "experts" in spec.targets else None
    targets = [target for target in adapted_targets(base, spec.targets) if target != "experts"]
    lora = LoraConfig(r=spec.rank, lora_alpha=int(spec.alpha), target_modules=targets, target_parameters=experts)
    stock = get_peft_model(base, lora)
    theirs = stock_weights(stock)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in ours.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
            theirs[name].copy_(weight)
    return Pair(ours, stock.train())


def stock_weights(stock: Any) -> dict[str, torch.nn.Parameter]:
    return {name.replace(".default.", "."): w for name, w in sorted(stock.named_parameters()) if "lora_" in name}


def packed(data: Data, *, budget: int = 10_000, share: bool = True) -> Packing:
    return pack([np.array(p) for p, _ in data], [np.array(c) for _, c in data], budget=budget, share=share)


def weight_of(i: int, j: int) -> float:
    return 1.0 + i + 0.1 * j


def first_layers(path: Path, count: int, where: Path) -> Path:
    """The first layers of a model, with its embeddings and head."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, num_hidden_layers=count)
    model.save_pretrained(where)
    return where
