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
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
"""Files that a tokenizer, its chat template, and the processors of images and other media consist of."""


def merge_adapter(model: Path, adapter: Path, *, trust_remote_code: bool = False) -> Any:
    """The base model with the adapter in its weights, in the dtype that it is published in, on the CPU."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype="auto", trust_remote_code=trust_remote_code)
    try:
        return PeftModel.from_pretrained(base, str(adapter)).merge_and_unload(safe_merge=True)
    except ValueError as error:  # PEFT found NaN
        raise ConfigError(f"the adapter cannot be merged: {error}") from error


def export(model: Path, adapter: Path, out: Path, format: str, *, name: str, trust_remote_code: bool = False) -> None:
    """Writes a version as a model of its own.

    Args:
        model: Directory of the base model.
        adapter: The version's adapter, in PEFT's format.
        out: The directory to make.
        format: `merged` or `gguf`.
        name: What a GGUF calls the model: policy and version. A directory of transformers has no place for a name.
        trust_remote_code: Whether Python code in the base model's directory may run.

    Raises:
        ConfigError: The format cannot hold the model.
    """
    whole = merge_adapter(model, adapter, trust_remote_code=trust_remote_code)
    out.mkdir(parents=True)
    if format == "gguf":
        write_gguf(whole, model, out / "model.gguf", name=name)
        return
    whole.save_pretrained(out)
    for file in _TOKENIZER:  # as they are: the same text makes the same tokens
        if (model / file).exists():
            shutil.copyfile(model / file, out / file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="directory of the base model")
    parser.add_argument("--adapter", type=Path, required=True, help="directory in PEFT's format")
    parser.add_argument("--out", type=Path, required=True, help="directory that is made")
    parser.add_argument("--name", required=True, help="what a GGUF calls the model: policy@version")
    parser.add_argument("--format", choices=["merged", "gguf"], required=True)
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code in the model's directory")
    args = parser.parse_args()
    try:
        export(
            args.model,
            args.adapter,
            args.out,
            args.format,
            name=args.name,
            trust_remote_code=args.trust_remote_code,
        )
    except (ARTError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
