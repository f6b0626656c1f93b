"""A version merged into its base model: a directory for transformers and vLLM, or one GGUF. A process of its own."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import AutoModelForCausalLM

from trainer_server.training.export.gguf import write_gguf
from trainer_server.wire import ARTError, ConfigError

_TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files that a tokenizer and its chat template consist of."""


def merged(model: str, adapter: Path) -> Any:
    """The base model with the adapter in its weights, in the dtype that it is published in, on the CPU."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    try:
        return PeftModel.from_pretrained(base, str(adapter)).merge_and_unload(safe_merge=True)
    except ValueError as error:  # PEFT found NaN
        raise ConfigError(f"the adapter cannot be merged: {error}") from error


def source(model: str) -> Path:
    """The directory of a base model; of a hub id, where its small files are on this machine."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, allow_patterns=[*_TOKENIZER, "config.json"]))


def export(model: str, adapter: Path, out: Path, format: str) -> None:
    """Writes a merged model.

    Args:
        model: Directory or hub id of the base model.
        adapter: Directory in PEFT's format.
        out: Directory that is made.
        format: `merged` (safetensors) or `gguf`.

    Raises:
        ConfigError: The format cannot hold this model.
    """
    whole = merged(model, adapter)
    out.mkdir(parents=True)
    if format == "gguf":
        write_gguf(whole, source(model), out / "model.gguf")
        return
    whole.save_pretrained(out)
    for name in _TOKENIZER:  # as they are: the same text makes the same tokens
        if (source(model) / name).exists():
            shutil.copyfile(source(model) / name, out / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="directory or hub id of the base model")
    parser.add_argument("--adapter", type=Path, required=True, help="directory in PEFT's format")
    parser.add_argument("--out", type=Path, required=True, help="directory that is made")
    parser.add_argument("--format", choices=["merged", "gguf"], required=True)
    args = parser.parse_args()
    try:
        export(args.model, args.adapter, args.out, args.format)
    except (ARTError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
