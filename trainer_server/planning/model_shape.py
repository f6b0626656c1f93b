"""Memory needs of a model, calculated from its config: parameters, and bytes per token and per adapter.

Decoders with attention, with Gated DeltaNet beside it, and with a mixture of experts in place of the MLP. Formulas use
L layers, E hidden size, I intermediate size, H query heads, K key heads, D head size, V vocabulary, r LoRA rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from trainer_server.engines.model_files import ModelFiles
from trainer_server.engines.package_models import package_model
from trainer_server.engines.served_model import local_directory
from trainer_server.process.hardware import checkpoint_above
from trainer_server.wire import ConfigError
from trainer_server.wire.policies import ATTENTION_TARGETS, RECURRENT_TARGETS, in_order

BF16 = 2
"""Bytes of a bf16 number."""
FP32 = 4
"""Bytes of an fp32 number."""
NF4 = 4.5 / 8
"""Bytes of a 4-bit weight of bitsandbytes: half a byte, and an fp32 scale for each block of 64."""
_CHUNK = 64
"""Tokens that a gated delta rule computes at once."""
_MIXTURES = ("gpt_oss", "mixtral", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next")
"""Types of models whose mixtures of experts the formulas are for."""
_OTHER_LAYERS = ("kv_lora_rank", "mamba_d_state", "ssm_state_size", "conv_L_cache")
"""Keys of configurations with layers that they are not for: latent attention, Mamba, short convolutions."""


class Matrices(NamedTuple):
    """Linear layers of one name: how many layers have one, and its sizes."""

    name: str
    layers: int
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """The sizes of the layers that have Gated DeltaNet in place of attention.

    Args:
        layers: Number of these layers.
        key_heads: Heads of keys, and of queries.
        value_heads: Heads of values.
        key_size: Size of a head of keys.
        value_size: Size of a head of values.
        taps: Length of the convolution.
        joint: Whether its input has two linear layers (Qwen3-Next) in place of four (Qwen3.5).
    """

    layers: int
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    taps: int
    joint: bool

    @property
    def values(self) -> int:
        """Numbers of a token's values."""
        return self.value_heads * self.value_size

    @property
    def channels(self) -> int:
        """Numbers of a token's queries, keys and values."""
        return 2 * self.key_heads * self.key_size + self.values

    def matrices(self, hidden_size: int) -> list[Matrices]:
        """Its linear layers."""
        heads, values = self.value_heads, self.values
        outputs = {"in_proj_qkv": self.channels, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads}
        if self.joint:
            outputs = {"in_proj_qkvz": self.channels + values, "in_proj_ba": 2 * heads}
        inputs = [Matrices(name, self.layers, hidden_size, width) for name, width in outputs.items()]
        return [*inputs, Matrices("out_proj", self.layers, values, hidden_size)]

    @property
    def kept_bytes_per_token(self) -> int:
        """Bytes of activations that one of these layers keeps for each token, as torch computes it without kernels.

        Measured. In bf16: twice the queries, keys and values, and twice the values. In fp32, for each value head: seven
        arrays of a key's size and five of a value's, five of a chunk's, and two states for each chunk.
        """
        chunk, state = _CHUNK, self.key_size * self.value_size
        numbers = 7 * self.key_size + 5 * self.value_size + 5 * chunk + 2 * state // chunk
        return BF16 * 2 * (self.channels + self.values) + FP32 * self.value_heads * numbers

    @property
    def state_bytes(self) -> int:
        """Bytes of what these layers keep of a request in vLLM's cache: for each value head a matrix in fp32, and the
        last inputs of the convolution in bf16."""
        return self.layers * (FP32 * self.values * self.key_size + BF16 * (self.taps - 1) * self.channels)


@dataclass(frozen=True, slots=True)
class Experts:
    """The sizes of a mixture of experts.

    Args:
        model_type: Type of the text model that has it.
        layers: Number of layers that have it in place of an MLP.
        count: Experts of a layer.
        per_token: Experts that compute a token.
        intermediate: Intermediate size of an expert.
        shared_intermediate: That of the expert beside them that computes all tokens; 0: there is none.
        arrays: Arrays of its intermediate size that an expert keeps for the backward pass: gate and up, and SiLU of the
            gate; six of gpt-oss, which caps them.
    """

    model_type: str
    layers: int
    count: int
    per_token: int
    intermediate: int
    shared_intermediate: int = 0
    arrays: int = 3


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
        gate: Whether `q_proj` has a gate of attention's output, too (Qwen3.5).
        joint: Whether q, k and v are one layer, and gate and up another (Phi-3).
        gated_delta: Layers with Gated DeltaNet; None: all have attention.
        experts: Layers with a mixture of experts; None: all have MLPs.
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
    gate: bool = False
    joint: bool = False
    gated_delta: GatedDelta | None = None
    experts: Experts | None = None

    @property
    def attention_layers(self) -> int:
        """Number of layers with attention."""
        return self.layers - (self.gated_delta.layers if self.gated_delta else 0)

    @property
    def mlp_layers(self) -> int:
        """Number of layers with an MLP in place of experts."""
        return self.layers - (self.experts.layers if self.experts else 0)

    @property
    def matrices(self) -> list[Matrices]:
        """The linear layers of the decoder. Experts and routers are none."""
        size, attention = self.hidden_size, self.attention_layers
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        of_queries = 2 * queries if self.gate else queries
        inputs = {"q_proj": of_queries, "k_proj": keys, "v_proj": keys}
        if self.joint:
            inputs = {"qkv_proj": sum(inputs.values())}
        linear = [Matrices(name, attention, size, outputs) for name, outputs in inputs.items()]
        linear.append(Matrices("o_proj", attention, queries, size))
        if self.gated_delta:
            linear += self.gated_delta.matrices(size)
        mlps = [(self.mlp_layers, self.intermediate)]
        if self.experts and self.experts.shared_intermediate:
            mlps.append((self.experts.layers, self.experts.shared_intermediate))
        for layers, intermediate in mlps:
            outputs = {"gate_proj": intermediate, "up_proj": intermediate}
            if self.joint:
                outputs = {"gate_up_proj": 2 * intermediate}
            linear += [Matrices(name, layers, size, width) for name, width in outputs.items()]
            linear.append(Matrices("down_proj", layers, intermediate, size))
        return [matrix for matrix in linear if matrix.layers]

    @property
    def adapted_matrices(self) -> list[Matrices]:
        """The linear layers that get an adapter: all, or of a mixture of experts those of attention and recurrence."""
        names = {*ATTENTION_TARGETS, *RECURRENT_TARGETS}
        return [matrix for matrix in self.matrices if self.experts is None or matrix.name in names]

    @property
    def expert_matrices(self) -> list[Matrices]:
        """The matrices of all experts, which get an adapter each where a policy's targets have `EXPERTS`.

        Gate and up are one, with one A, in the trainer and in the models whose adapters of experts vLLM reads.
        """
        if self.experts is None:
            return []
        size, intermediate = self.hidden_size, self.experts.intermediate
        count = self.experts.layers * self.experts.count
        return [
            Matrices("gate_up_proj", count, size, 2 * intermediate),
            Matrices("down_proj", count, intermediate, size),
        ]

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the linear layers that get an adapter."""
        return in_order(matrix.name for matrix in self.adapted_matrices)

    @property
    def linear_parameters(self) -> int:
        """Parameters of the linear layers, which 4-bit loading shrinks. Of a dense model: L·(2·E·H·D + 2·E·K·D +
        3·E·I)."""
        return sum(matrix.layers * matrix.inputs * matrix.outputs for matrix in self.matrices)

    @property
    def layer_parameters(self) -> int:
        """Parameters of all layers: the linear ones, experts (3·E·I each) and routers, norms and biases."""
        keys = self.key_heads * self.head_size
        biases = self.attention_layers * (self.heads * self.head_size + 2 * keys) if self.biased else 0
        experts = 0
        if self.experts:
            each = self.hidden_size * (3 * self.experts.intermediate + 1)  # 1: its row of the router
            experts = self.experts.layers * self.experts.count * each
        return self.linear_parameters + experts + 2 * self.layers * self.hidden_size + biases

    @property
    def parameters(self) -> int:
        """All parameters: those of layers, V·E for each embedding, and the last norm."""
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.hidden_size
        return self.layer_parameters + embeddings + self.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in bf16."""
        return BF16 * self.parameters

    @property
    def weight_bytes_4bit(self) -> float:
        """Bytes of all weights, with the linear layers in NF4 and the rest, experts too, in bf16."""
        return NF4 * self.linear_parameters + BF16 * (self.parameters - self.linear_parameters)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of vLLM's KV cache for each token, in bf16: 2·K·D·2 for each layer with attention."""
        return 2 * self.attention_layers * self.key_heads * self.head_size * BF16

    @property
    def state_bytes(self) -> int:
        """Bytes of vLLM's cache for each request, however long it is."""
        return self.gated_delta.state_bytes if self.gated_delta else 0

    def lora_parameters(self, rank: int, *, experts: bool = False) -> int:
        """Parameters of a LoRA adapter: r·(in + out) for each linear layer that gets one, and for each matrix of each
        expert where `experts` get one."""
        matrices = [*self.adapted_matrices, *(self.expert_matrices if experts else ())]
        return sum(matrix.layers * rank * (matrix.inputs + matrix.outputs) for matrix in matrices)

    def trainer_state_bytes(self, rank: int, *, experts: bool = False) -> int:
        """Bytes of fp32 weights, gradients and AdamW's two moments: 16 for each parameter of an adapter."""
        return 4 * FP32 * self.lora_parameters(rank, experts=experts)

    @property
    def kept_bytes_per_token(self) -> int:
        """Bytes of activations that all layers keep for each token until the backward pass, without checkpointing.

        In bf16, a layer with attention keeps the input of q/k/v (E) and of o (H·D); q, k, v and the output of
        attention, with keys repeated for each query head (4·H·D). An MLP keeps the input of gate/up (E), gate, its
        SiLU, up and their product (4·I). Experts keep for each that computes the token `Experts.arrays` of I, and their
        output (E). In fp32 each of these keeps a norm (E).
        """
        size, queries = self.hidden_size, self.heads * self.head_size
        norm = FP32 * size
        attention = BF16 * (size + (7 if self.gate else 5) * queries) + norm
        total = self.attention_layers * attention + self.mlp_layers * (BF16 * (size + 4 * self.intermediate) + norm)
        if delta := self.gated_delta:
            total += delta.layers * (BF16 * size + norm + delta.kept_bytes_per_token)
        if mixture := self.experts:
            of_experts = mixture.per_token * (mixture.arrays * mixture.intermediate + size)
            total += mixture.layers * (BF16 * (size + of_experts + 3 * mixture.shared_intermediate) + norm)
        return total

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
            ConfigError: The formulas are not for such a model.
        """
        config = config.get("text_config") or config
        kind = config.get("model_type")
        experts = next((key for key in config if "experts" in key and config[key]), None)
        if experts and kind not in _MIXTURES:
            text = f"{experts}={config[experts]}: the arithmetic is for mixtures of experts of {', '.join(_MIXTURES)}"
            raise ConfigError(f"{origin} has {text}")
        if other := next((key for key in _OTHER_LAYERS if config.get(key)), None):
            raise ConfigError(f"{origin} has {other}: the arithmetic is for attention and Gated DeltaNet")
        try:
            heads, hidden_size = int(config["num_attention_heads"]), int(config["hidden_size"])
            mixture = _experts(config) if experts else None
            layers = int(config["num_hidden_layers"])
            dense = mixture is None or mixture.layers < layers
            return cls(
                layers=layers,
                hidden_size=hidden_size,
                intermediate=int(config["intermediate_size"]) if dense else 0,
                heads=heads,
                key_heads=int(config.get("num_key_value_heads") or heads),
                head_size=int(config.get("head_dim") or hidden_size // heads),
                vocabulary=int(config["vocab_size"]),
                tied=bool(config.get("tie_word_embeddings", False)),
                biased=kind == "qwen2",
                gate="linear_num_value_heads" in config,
                joint=kind == "phi3",
                gated_delta=_gated_delta(config) if "linear_num_value_heads" in config else None,
                experts=mixture,
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
            ConfigError: There is no such model, or the formulas are not for it.
        """
        package = package_model(model)
        if package is None and (directory := local_directory(model)):
            return cls.of_config(ModelFiles(directory).config, str(directory / "config.json"))
        name = (package.name if package else model.rpartition("/")[2]).lower()
        name = name.removesuffix("-instruct").removesuffix("-base").replace("qwen2.5-coder", "qwen2.5")
        if shape := next((shape for key, shape in KNOWN.items() if key.lower() == name), None):
            return shape
        raise ConfigError(f"--model {model}: give its directory or config.json, or one of: {', '.join(KNOWN)}")


def _gated_delta(config: dict[str, Any]) -> GatedDelta:
    kinds, layers = config.get("layer_types"), int(config["num_hidden_layers"])
    return GatedDelta(
        layers=kinds.count("linear_attention") if kinds else layers - layers // config["full_attention_interval"],
        key_heads=int(config["linear_num_key_heads"]),
        value_heads=int(config["linear_num_value_heads"]),
        key_size=int(config["linear_key_head_dim"]),
        value_size=int(config["linear_value_head_dim"]),
        taps=int(config.get("linear_conv_kernel_dim") or 4),
        joint=config["model_type"] == "qwen3_next",
    )


def _experts(config: dict[str, Any]) -> Experts:
    dense, every = config.get("mlp_only_layers") or (), config.get("decoder_sparse_step") or 1
    return Experts(
        model_type=str(config["model_type"]),
        layers=sum(at not in dense and (at + 1) % every == 0 for at in range(int(config["num_hidden_layers"]))),
        count=int(config.get("num_experts") or config["num_local_experts"]),
        per_token=int(config["num_experts_per_tok"]),
        intermediate=int(config.get("moe_intermediate_size") or config["intermediate_size"]),
        shared_intermediate=int(config.get("shared_expert_intermediate_size") or 0),
        arrays=6 if config["model_type"] == "gpt_oss" else 3,
    )


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
    "Qwen3-30B-A3B": ModelShape(
        48, 2048, 0, 32, 4, 128, 151936, False, experts=Experts("qwen3_moe", 48, 128, per_token=8, intermediate=768)
    ),
    "Gemma-3-270M": ModelShape(18, 640, 2048, 4, 1, 256, 262144, True),
    "Llama-3.2-1B": ModelShape(16, 2048, 8192, 32, 8, 64, 128256, True),
    "Llama-3.2-3B": ModelShape(28, 3072, 8192, 24, 8, 128, 128256, True),
    "Llama-3.1-8B": ModelShape(32, 4096, 14336, 32, 8, 128, 128256, False),
    "Llama-3.1-70B": ModelShape(80, 8192, 28672, 64, 8, 128, 128256, False),
    "Llama-3.3-70B": ModelShape(80, 8192, 28672, 64, 8, 128, 128256, False),
    "Mistral-7B-v0.3": ModelShape(32, 4096, 14336, 32, 8, 128, 32768, False),
}
"""Shapes from published configs, so that a plan needs no network."""
