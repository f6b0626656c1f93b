"""A model of the Llama family as one GGUF file, for llama.cpp and what is built on it. Weights keep their precision.

A tokenizer's way of cutting text into words has only a name in a GGUF. Where it has none that is known here, nothing
is written: a wrong name means other tokens, without a word of warning.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType

from trainer_server.wire import ConfigError

_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""transformers' model type → GGUF's architecture."""
_FILE_TYPES = {
    torch.float32: (GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    torch.float16: (GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    torch.bfloat16: (GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
}
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|" + _WORDS % "{1,3}": "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|" + _WORDS % "": "qwen2",
}
"""Regular expression of a pre-tokenizer → its name in a GGUF."""
_OTHERWISE = "Export it merged, and convert that with llama.cpp's convert_hf_to_gguf.py."


def write_gguf(model: Any, source: Path, path: Path, *, name: str) -> None:
    """Writes a model as one GGUF file.

    Args:
        model: A transformers model, adapter merged.
        source: The directory with its tokenizer and chat template.
        path: The file to write.
        name: `general.name` in the file, which llama.cpp and others show.

    Raises:
        ConfigError: A GGUF cannot hold this model or tokenizer.
    """
    config = model.config
    architecture = _ARCHITECTURES.get(config.model_type)
    if architecture is None:
        types = ", ".join(_ARCHITECTURES)
        raise ConfigError(
            f"a model of type {config.model_type!r} cannot be written as GGUF, only {types}. {_OTHERWISE}"
        )
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if rope.get("rope_type", "default") != "default":
        raise ConfigError(f"rope_type {rope['rope_type']!r} cannot be written as GGUF. {_OTHERWISE}")
    window = getattr(config, "sliding_window", None)
    if window and window < config.max_position_embeddings and getattr(config, "use_sliding_window", True):
        raise ConfigError(f"a sliding window of {window} tokens cannot be written as GGUF. {_OTHERWISE}")
    kind, file_type = _FILE_TYPES[model.dtype]
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    writer = GGUFWriter(path, architecture)
    writer.add_name(name)
    writer.add_file_type(file_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(float(rope.get("rope_theta", 10_000.0)))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _tokenizer(writer, source, config.vocab_size)
    _tensors(writer, model, architecture, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(writer: GGUFWriter, model: Any, architecture: str, kind: GGMLQuantizationType) -> None:
    config = model.config
    (arch,) = (key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if gguf_name is None:
            raise ConfigError(f"GGUF knows no place for {name!r} in a {architecture}. {_OTHERWISE}")
        values = weight.float().numpy()
        if architecture == "llama" and ".self_attn.q_proj." in name:
            values = _interleave(values, config.num_attention_heads)
        if architecture == "llama" and ".self_attn.k_proj." in name:
            values = _interleave(values, config.num_key_value_heads)
        target = GGMLQuantizationType.F32 if values.ndim == 1 else kind  # llama.cpp wants vectors whole
        writer.add_tensor(gguf_name, gguf.quants.quantize(values, target), raw_dtype=target)


def _interleave(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of a projection in the order of llama.cpp's rotary embedding: pairs side by side, not half a head apart."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _tokenizer(writer: GGUFWriter, source: Path, size: int) -> None:
    if not (source / "tokenizer.json").exists():
        raise ConfigError(f"the base model has no tokenizer.json, which a GGUF is made from. {_OTHERWISE}")
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    if tokenizer["model"].get("type") != "BPE" or tokenizer["model"].get("byte_fallback"):
        raise ConfigError(f"only byte-level BPE tokenizers can be written as GGUF. {_OTHERWISE}")
    tokens = [f"[PAD{number}]" for number in range(size)]  # a model may have more rows than its tokenizer has tokens
    kinds = [TokenType.UNUSED] * size
    for token, number in tokenizer["model"]["vocab"].items():
        tokens[number], kinds[number] = token, TokenType.NORMAL
    for special in tokenizer["added_tokens"]:
        kind = TokenType.CONTROL if special["special"] else TokenType.USER_DEFINED
        tokens[special["id"]], kinds[special["id"]] = special["content"], kind
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_tokenizer(tokenizer["pre_tokenizer"]))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    gguf.SpecialVocab(source, load_merges=True, n_vocab=size).add_to_gguf(writer, quiet=True)


def _pre_tokenizer(definition: dict[str, Any] | None) -> str:
    """The name in a GGUF of a tokenizer's way of cutting text into words."""
    parts = (definition or {}).get("pretokenizers", [definition or {}])
    kinds = [part.get("type") for part in parts]
    if not parts[-1].get("add_prefix_space"):
        if kinds == ["ByteLevel"] and parts[0].get("use_regex"):
            return "gpt-2"
        if kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits") and parts[1].get("use_regex"):
            return "smollm"
        if kinds == ["Split", "ByteLevel"] and (name := _SPLITS.get(parts[0]["pattern"].get("Regex"))):
            return name
    raise ConfigError(
        f"the tokenizer cuts text in a way that has no name in a GGUF: {json.dumps(definition)}. {_OTHERWISE}"
    )
