"""What a model's directory says of it without its weights: configuration, chat template, tokens."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainer_server.wire import ConfigError
from trainer_server.wire.policies import ABSORBED_TARGET, ATTENTION_TARGETS, RECURRENT_TARGETS, in_order

_IN_LAYER = re.compile(r"\.\d+\.(?:.+\.)?([A-Za-z_]\w*)\.(?:weight|qweight|weight_packed)$")
"""The name of a matrix of a layer in a checkpoint; its group is the linear layer's own name."""
_EXPERTS = re.compile(r"\.experts\.|\.block_sparse_moe\.")
_TOWER = re.compile(r"vis(?:ion|ual)|audio")
_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_target_positions",
    "model_max_length",
)
"""Keys of a configuration that name the longest context."""
_SCALED_ALREADY = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default", "mrope")
"""Kinds of rotary embeddings whose configuration names the context after scaling."""


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model that say what it is.

    Args:
        directory: The model's directory. Files that are missing in it count as empty; it may have no weights.
        chat_template: A chat template that is used instead of the model's own, as text; None: its own.
    """

    directory: Path
    chat_template: str | None = None

    @cached_property
    def config(self) -> dict[str, Any]:
        """Content of config.json; empty if there is none.

        Raises:
            ConfigError: It is no JSON object.
        """
        return self._json("config.json")

    @property
    def model_type(self) -> str:
        """The family's name with transformers, such as `qwen3`; empty if the configuration has none."""
        return str(self.config.get("model_type") or "")

    @property
    def architectures(self) -> list[str]:
        """Names of model classes, such as `Qwen3ForCausalLM`."""
        return [str(name) for name in self.config.get("architectures") or ()]

    @property
    def reads_videos(self) -> bool:
        """Whether prompts may have videos."""
        return any(key.startswith("video_token") for key in self.config)

    @property
    def has_gated_delta(self) -> bool:
        """Whether it has layers with Gated DeltaNet, which vLLM computes in bf16 alone on CPUs (`gdn_attention.py`)."""
        return "linear_num_value_heads" in self.text_config

    @cached_property
    def linear_layers(self) -> tuple[str, ...]:
        """Names of the linear layers that can get an adapter, by the headers of the weights; empty without safetensors.

        Of mixtures of experts these are those of attention and recurrent layers, and of models with towers those of the
        language model.
        """
        shapes: dict[str, list[int]] = {}
        for path in sorted(self.directory.glob("*.safetensors")):
            with path.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            shapes |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
        text = {name: shape for name, shape in shapes.items() if not _TOWER.search(name)}
        names = {
            match[1]
            for name, shape in text.items()
            if len(shape) == 2 and not _EXPERTS.search(name) and (match := _IN_LAYER.search(name))
        }
        if any(_EXPERTS.search(name) for name in text):
            names &= {*ATTENTION_TARGETS, *RECURRENT_TARGETS}
        return in_order(names - {ABSORBED_TARGET})

    @cached_property
    def template(self) -> str:
        """The chat template that requests with tools use, as Jinja; empty if the model has none.

        A model can have several named templates. Then it is `tool_use`, or else `default`.

        Raises:
            ConfigError: A file of the tokenizer is no JSON object.
        """
        if self.chat_template is not None:
            return self.chat_template
        for path in (
            self.directory / "additional_chat_templates" / "tool_use.jinja",
            self.directory / "chat_template.jinja",
        ):
            if path.is_file():
                return path.read_text()
        for name in ("chat_template.json", "tokenizer_config.json"):
            if template := self._json(name).get("chat_template"):
                return _choose_template(template)
        return ""

    @property
    def shows_tools(self) -> bool:
        """Whether the chat template uses the tools of a request, so that the model sees them."""
        return bool(re.search(r"\btools\b", self.template))

    @cached_property
    def context(self) -> int | None:
        """The longest context that the configuration allows, in tokens: prompt and answer; None if it names none."""
        config = self.text_config
        lengths = [int(config[key]) for key in _LENGTHS if isinstance(config.get(key), int)]
        if not lengths:
            return None
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        kind = str(rope.get("rope_type") or rope.get("type") or "default")
        if kind == "longrope" and isinstance(config.get("original_max_position_embeddings"), int):
            return int(config["original_max_position_embeddings"])  # longer contexts make short ones worse
        factor = rope.get("factor") if kind not in _SCALED_ALREADY and "gemma3" not in self.model_type else None
        return int(min(lengths) * float(factor or 1))

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids of the tokens with which the model ends an answer."""
        values = [self._json(name).get("eos_token_id") for name in ("generation_config.json", "config.json")]
        values.append(self.text_config.get("eos_token_id"))
        return frozenset(
            int(token)
            for value in values
            for token in (value if isinstance(value, list) else [value])
            if isinstance(token, int)
        )

    @property
    def text_config(self) -> dict[str, Any]:
        """The part of the configuration that describes the language model; other parts describe vision and sound."""
        part = self.config.get("text_config")
        return part if isinstance(part, dict) else self.config

    @property
    def needs_own_code(self) -> bool:
        """Whether transformers can load the model by Python code in its directory (`auto_map`) only.

        Many models of the hub still have `auto_map` although transformers knows them by now. So this is a hint: whether
        the code is needed shows when transformers loads the configuration.
        """
        return "AutoConfig" in (self.config.get("auto_map") or {})

    def has_token(self, text: str) -> bool | None:
        """Whether a text is one token of the vocabulary; None if that cannot be read without the tokenizer's code."""
        return None if self._vocabulary is None else text in self._vocabulary

    @cached_property
    def _vocabulary(self) -> frozenset[str] | None:
        extra_tokens = self._json("tokenizer_config.json").get("added_tokens_decoder") or {}
        names = {str(token.get("content")) for token in extra_tokens.values() if isinstance(token, dict)}
        tokenizer = self._json("tokenizer.json")
        if not tokenizer:
            return None
        names |= {str(token.get("content")) for token in tokenizer.get("added_tokens") or ()}
        vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
        names |= set(vocabulary) if isinstance(vocabulary, dict) else {str(entry[0]) for entry in vocabulary}
        return frozenset(names)

    def _json(self, name: str) -> dict[str, Any]:
        path = self.directory / name
        if not path.is_file():
            return {}
        try:
            content = json.loads(path.read_bytes())
        except ValueError as error:
            raise ConfigError(f"{path} is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise ConfigError(f"{path} holds no JSON object")
        return content


def _choose_template(templates: object) -> str:
    """The template of `tool_use`, or the default one. The value is a text, or a list of {name, template}."""
    if isinstance(templates, str):
        return templates
    if isinstance(templates, list):
        templates = {entry.get("name"): entry.get("template") for entry in templates if isinstance(entry, dict)}
    if isinstance(templates, dict):
        return str(templates.get("tool_use") or templates.get("default") or "")
    return ""
