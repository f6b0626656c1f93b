"""Memory needs of a model, calculated from its config: parameters, and bytes per token and per adapter.

Only dense decoders are supported. Formulas use L layers, E hidden size, I intermediate size, H query heads, K key
heads, D head size, V vocabulary, r LoRA rank.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_server.process.hardware import checkpoint_above
from trainer_server.wire import ConfigError

BF16 = 2
"""Bytes of a bf16 number."""
FP32 = 4
"""Bytes of an fp32 number."""
NF4 = 4.5 / 8
"""Bytes of a 4-bit weight of bitsandbytes: half a byte, and an fp32 scale for each block of 64."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model that determine its memory needs.

    Args:
        layers: Number of layers (L).
        hidden_size: Hidden size (E).
        intermediate: Intermediate size of the MLP (I).
        heads: Number of query heads (H).
        key_heads: Number of key heads (K).
        head_size: Size of a head (D).
        vocabulary: Number of tokens in the vocabulary (V).
        tied: Whether input and output embeddings are one matrix.
        biased: Whether q, k, v have biases (Qwen2).
    """

    layers: int
    hidden_size: int
    intermediate: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    biased: bool = False

    @property
    def linear_parameters(self) -> int:
        """Parameters of the matrices that LoRA adapts and 4-bit loading shrinks: L·(2·E·H·D + 2·E·K·D + 3·E·I)."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        return self.layers * self.hidden_size * (2 * queries + 2 * keys + 3 * self.intermediate)

    @property
    def parameters(self) -> int:
        """All parameters: the matrices, V·E for each embedding, norms and biases."""
        keys = self.key_heads * self.head_size
        biases = self.layers * (self.heads * self.head_size + 2 * keys) if self.biased else 0
        norms = (2 * self.layers + 1) * self.hidden_size
        return self.linear_parameters + (1 if self.tied else 2) * self.vocabulary * self.hidden_size + norms + biases

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in bf16."""
        return BF16 * self.parameters

    @property
    def weight_bytes_4bit(self) -> float:
        """Bytes of all weights, with the matrices in NF4 and the rest in bf16."""
        return NF4 * self.linear_parameters + BF16 * (self.parameters - self.linear_parameters)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of vLLM's KV cache for each token, in bf16: 2·L·K·D·2."""
        return 2 * self.layers * self.key_heads * self.head_size * BF16

    def lora_parameters(self, rank: int) -> int:
        """Parameters of a LoRA adapter on q, k, v, o, gate, up, down: r·(in + out) for each matrix."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        ends = (
            2 * (self.hidden_size + queries)
            + 2 * (self.hidden_size + keys)
            + 3 * (self.hidden_size + self.intermediate)
        )
        return self.layers * rank * ends

    def trainer_state_bytes(self, rank: int) -> int:
        """Bytes of fp32 weights, gradients and AdamW's two moments: 16 for each parameter of an adapter."""
        return 4 * FP32 * self.lora_parameters(rank)

    @property
    def kept_bytes_per_token(self) -> int:
        """Bytes of activations that all layers keep for each token until the backward pass, without checkpointing.

        Each layer keeps in bf16: the inputs of q/k/v and of gate/up (E each) and of o (H·D); q, k, v and the output of
        attention, with keys repeated for each query head (4·H·D); gate, its SiLU, up and their product (4·I). In fp32
        it keeps two norms (2·E).
        """
        queries = self.heads * self.head_size
        per_layer = BF16 * (2 * self.hidden_size + 5 * queries + 4 * self.intermediate) + FP32 * 2 * self.hidden_size
        return self.layers * per_layer

    def activation_bytes(self, tokens: int) -> int:
        """Bytes of activations of a row of `tokens`, in the mode that the trainer chooses for it.

        With checkpointing, the trainer keeps the input of each layer, and all activations of one layer.
        """
        if tokens <= checkpoint_above(self.layers, self.hidden_size):
            return tokens * self.kept_bytes_per_token
        return tokens * (self.layers * self.hidden_size * BF16 + self.kept_bytes_per_token // self.layers)

    @property
    def head_bytes(self) -> int:
        """Bytes of the trainer's logits: four fp32 arrays of V for 128 tokens at a time."""
        return 4 * 128 * self.vocabulary * FP32

    @classmethod
    def of_config(cls, config: dict[str, Any], origin: str) -> ModelShape:
        """The shape of a model with this configuration.

        Args:
            config: Content of config.json.
            origin: Names the configuration in messages.

        Raises:
            ConfigError: The model is no dense decoder.
        """
        config = config.get("text_config") or config
        if experts := next((key for key in config if "experts" in key and config[key]), None):
            raise ConfigError(f"{origin} has {experts}={config[experts]}: the arithmetic is for dense models")
        try:
            heads, hidden_size = int(config["num_attention_heads"]), int(config["hidden_size"])
            return cls(
                layers=int(config["num_hidden_layers"]),
                hidden_size=hidden_size,
                intermediate=int(config["intermediate_size"]),
                heads=heads,
                key_heads=int(config.get("num_key_value_heads") or heads),
                head_size=int(config.get("head_dim") or hidden_size // heads),
                vocabulary=int(config["vocab_size"]),
                tied=bool(config.get("tie_word_embeddings", False)),
                biased=config.get("model_type") == "qwen2",
            )
        except KeyError as error:
            raise ConfigError(f"{origin} has no {error}: it is no config of a dense decoder") from None
        except (TypeError, ValueError) as error:  # a list with a size for each layer, say
            raise ConfigError(f"{origin} is no config of a dense decoder with equal layers: {error}") from None

    @classmethod
    def find(cls, model: str) -> ModelShape:
        """The shape of a model. Does not use the network.

        Args:
            model: A model directory, a config.json, a name in KNOWN with or without its organisation,
                `embedded`, or `testbed:NAME`.

        Raises:
            ConfigError: There is no such model, or it is no dense decoder.
        """
        path = Path(model).expanduser()
        path = path / "config.json" if path.is_dir() else path
        if path.is_file():
            try:
                return cls.of_config(json.loads(path.read_text()), str(path))
            except ValueError as error:
                raise ConfigError(f"{path} is not JSON: {error}") from None
        from trainer_server.engines.package_models import package_model  # needs POSIX

        package = package_model(model)
        name = (package.name if package else model.rpartition("/")[2]).lower()
        name = name.removesuffix("-instruct").removesuffix("-base").replace("qwen2.5-coder", "qwen2.5")
        if shape := next((shape for key, shape in KNOWN.items() if key.lower() == name), None):
            return shape
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
    "Gemma-3-270M": ModelShape(18, 640, 2048, 4, 1, 256, 262144, True),
    "Llama-3.2-1B": ModelShape(16, 2048, 8192, 32, 8, 64, 128256, True),
    "Llama-3.2-3B": ModelShape(28, 3072, 8192, 24, 8, 128, 128256, True),
    "Llama-3.1-8B": ModelShape(32, 4096, 14336, 32, 8, 128, 128256, False),
    "Llama-3.1-70B": ModelShape(80, 8192, 28672, 64, 8, 128, 128256, False),
    "Llama-3.3-70B": ModelShape(80, 8192, 28672, 64, 8, 128, 128256, False),
    "Mistral-7B-v0.3": ModelShape(32, 4096, 14336, 32, 8, 128, 32768, False),
}
"""Shapes from published configs, so that a plan needs no network."""
