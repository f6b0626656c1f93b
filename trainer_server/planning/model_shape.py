"""What a model's config says about memory: parameters, and bytes per token and per adapter. Dense decoders only.

L layers, E hidden size, I intermediate size, H query heads, K key heads, D head size, V vocabulary, r LoRA rank.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_server.wire import ConfigError

BF16 = 2
FP32 = 4
NF4 = 4.5 / 8
"""Bytes of a 4-bit weight of bitsandbytes: half a byte, and an fp32 scale for each block of 64."""


def checkpoint_above(layers: int, hidden: int) -> int:
    """Tokens of a row above which the trainer computes layers twice: 6,144 for SmolLM2-135M, whose 30 layers of 576
    keep 4.7 GB of them; fewer as models are larger."""
    return 6144 * 30 * 576 // (layers * hidden)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that decide about memory. tied: input and output embeddings are one matrix."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    biased: bool = False
    """Whether q, k, v have biases (Qwen2)."""

    @property
    def linear_parameters(self) -> int:
        """Of the matrices that LoRA adapts and 4-bit loading shrinks: L·(2·E·H·D + 2·E·K·D + 3·E·I)."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        return self.layers * self.hidden * (2 * queries + 2 * keys + 3 * self.intermediate)

    @property
    def parameters(self) -> int:
        """The matrices, V·E for each embedding, norms and biases."""
        keys = self.key_heads * self.head_size
        biases = self.layers * (self.heads * self.head_size + 2 * keys) if self.biased else 0
        norms = (2 * self.layers + 1) * self.hidden
        return self.linear_parameters + (1 if self.tied else 2) * self.vocabulary * self.hidden + norms + biases

    @property
    def weight_bytes(self) -> int:
        """In bf16."""
        return BF16 * self.parameters

    @property
    def weight_bytes_4bit(self) -> float:
        """Matrices in NF4, the rest in bf16."""
        return NF4 * self.linear_parameters + BF16 * (self.parameters - self.linear_parameters)

    @property
    def kv_bytes_per_token(self) -> int:
        """vLLM's cache, bf16: 2·L·K·D·2 bytes."""
        return 2 * self.layers * self.key_heads * self.head_size * BF16

    def lora_parameters(self, rank: int) -> int:
        """Of an adapter on q, k, v, o, gate, up, down: r·(in + out) for each matrix."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        ends = 2 * (self.hidden + queries) + 2 * (self.hidden + keys) + 3 * (self.hidden + self.intermediate)
        return self.layers * rank * ends

    def trainer_state_bytes(self, rank: int) -> int:
        """fp32 masters, gradients, and AdamW's two moments: 16 bytes for each weight of the adapter."""
        return 4 * FP32 * self.lora_parameters(rank)

    @property
    def kept_bytes_per_token(self) -> int:
        """What the layers keep of a token for the backward pass, without checkpointing.

        A layer, bf16: inputs of q/k/v, of gate/up (E each) and of o (H·D); q, k, v, output of attention with keys
        repeated for each query head (4·H·D); gate, its SiLU, up, their product (4·I). In fp32: two norms (2·E).
        """
        queries = self.heads * self.head_size
        per_layer = BF16 * (2 * self.hidden + 5 * queries + 4 * self.intermediate) + FP32 * 2 * self.hidden
        return self.layers * per_layer

    def activation_bytes(self, tokens: int) -> int:
        """What is kept of a row of `tokens`. With checkpointing: the input of each layer, and all of one layer."""
        if tokens <= checkpoint_above(self.layers, self.hidden):
            return tokens * self.kept_bytes_per_token
        return tokens * (self.layers * self.hidden * BF16 + self.kept_bytes_per_token // self.layers)

    @property
    def head_bytes(self) -> int:
        """The trainer's logits: 128 read-outs at a time, four fp32 arrays of V."""
        return 4 * 128 * self.vocabulary * FP32

    @classmethod
    def of_config(cls, config: dict[str, Any], origin: str) -> ModelShape:
        """From a config.json. Raises ConfigError for what is no dense decoder."""
        config = config.get("text_config") or config
        if experts := next((key for key in config if "experts" in key and config[key]), None):
            raise ConfigError(f"{origin} has {experts}={config[experts]}: the arithmetic is for dense models")
        try:
            heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
            return cls(
                layers=int(config["num_hidden_layers"]),
                hidden=hidden,
                intermediate=int(config["intermediate_size"]),
                heads=heads,
                key_heads=int(config.get("num_key_value_heads") or heads),
                head_size=int(config.get("head_dim") or hidden // heads),
                vocabulary=int(config["vocab_size"]),
                tied=bool(config.get("tie_word_embeddings", False)),
                biased=config.get("model_type") == "qwen2",
            )
        except KeyError as error:
            raise ConfigError(f"{origin} has no {error}: it is no config of a dense decoder") from None

    @classmethod
    def find(cls, model: str) -> ModelShape:
        """Of a model directory, a config.json, or one of KNOWN. Raises ConfigError. Asks no network."""
        path = Path(model).expanduser()
        path = path / "config.json" if path.is_dir() else path
        if path.is_file():
            try:
                return cls.of_config(json.loads(path.read_text()), str(path))
            except ValueError as error:
                raise ConfigError(f"{path} is not JSON: {error}") from None
        model = "SmolLM2-135M" if model == "embedded" else model
        name = model.rpartition("/")[2].lower().removesuffix("-instruct").removesuffix("-base")
        if found := next((shape for known, shape in KNOWN.items() if known.lower() == name), None):
            return found
        raise ConfigError(f"--model {model}: give its directory or config.json, or one of: {', '.join(KNOWN)}")


KNOWN: dict[str, ModelShape] = {
    "SmolLM2-135M": ModelShape(30, 576, 1536, 9, 3, 64, 49152, True),
    "SmolLM2-360M": ModelShape(32, 960, 2560, 15, 5, 64, 49152, True),
    "SmolLM2-1.7B": ModelShape(24, 2048, 8192, 32, 32, 64, 49152, True),
    "Qwen2.5-0.5B": ModelShape(24, 896, 4864, 14, 2, 64, 151936, True, True),
    "Qwen2.5-1.5B": ModelShape(28, 1536, 8960, 12, 2, 128, 151936, True, True),
    "Qwen2.5-3B": ModelShape(36, 2048, 11008, 16, 2, 128, 151936, True, True),
    "Qwen2.5-7B": ModelShape(28, 3584, 18944, 28, 4, 128, 152064, False, True),
    "Qwen2.5-14B": ModelShape(48, 5120, 13824, 40, 8, 128, 152064, False, True),
    "Qwen2.5-32B": ModelShape(64, 5120, 27648, 40, 8, 128, 152064, False, True),
    "Qwen3-0.6B": ModelShape(28, 1024, 3072, 16, 8, 128, 151936, True),
    "Qwen3-1.7B": ModelShape(28, 2048, 6144, 16, 8, 128, 151936, True),
    "Qwen3-4B": ModelShape(36, 2560, 9728, 32, 8, 128, 151936, True),
    "Qwen3-8B": ModelShape(36, 4096, 12288, 32, 8, 128, 151936, False),
    "Qwen3-14B": ModelShape(40, 5120, 17408, 40, 8, 128, 151936, False),
    "Qwen3-32B": ModelShape(64, 5120, 25600, 64, 8, 128, 151936, False),
    "Llama-3.2-1B": ModelShape(16, 2048, 8192, 32, 8, 64, 128256, True),
    "Llama-3.2-3B": ModelShape(28, 3072, 8192, 24, 8, 128, 128256, True),
    "Llama-3.1-8B": ModelShape(32, 4096, 14336, 32, 8, 128, 128256, False),
    "Llama-3.1-70B": ModelShape(80, 8192, 28672, 64, 8, 128, 128256, False),
    "Llama-3.3-70B": ModelShape(80, 8192, 28672, 64, 8, 128, 128256, False),
    "Mistral-7B-v0.3": ModelShape(32, 4096, 14336, 32, 8, 128, 32768, False),
}
"""Sizes from published configs, so that a plan needs no network."""
