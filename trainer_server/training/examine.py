"""Whether a model can be trained, found out without its weights: `python -m trainer_server.training.examine DIRECTORY`.

Prints JSON. A process of its own, since it imports torch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from trainer_server.training.model.architecture import check_trainable, unpackable
from trainer_server.training.model.experts import has_fused_experts
from trainer_server.training.model.lora import adapted_targets, has_experts
from trainer_server.training.model.recurrent import has_known_layers
from trainer_server.wire import TARGETS, TrainingError

_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up_word",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_QUESTION = {"role": "user", "content": "What is a heron?"}
_THOUGHT = "A bird, I believe."


def examine(directory: Path, rank: int, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """Examines a model by its configuration and tokenizer.

    Args:
        directory: The model's directory. It needs no weights.
        rank: LoRA rank that a policy would have.
        trust_remote_code: Whether Python code in the directory may run.

    Returns:
        `architecture`: the model's class. `untrainable`: why it cannot be trained, or None. `separate`: why completions
        need a row each, or None. `adapted`: number of layers that get an adapter. `targets`: their names.
        `experts`: whether the model is a mixture of experts. `adaptable_experts`: whether these can get an adapter,
        where a policy's targets name them. `parameters`: of the adapter. `template`: what the chat template shows, see
        `_probe_template`.
    """
    result: dict[str, Any] = {"architecture": None, "untrainable": None, "separate": None}
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        result["architecture"] = type(model).__name__
        check_trainable(model)
        result |= _adapter(model, rank)
        result["separate"] = unpackable(model.config.get_text_config(), by_segments=has_known_layers(model))
    except TrainingError as error:
        result["untrainable"] = str(error)
    # Of any kind: code of transformers and of the model fails in ways of its own.
    except Exception as error:
        result["untrainable"] = _first_line(error)
    return {**result, "template": _probe_template(directory, trust_remote_code)}


def _adapter(model: Any, rank: int) -> dict[str, Any]:
    """Layers that get an adapter, and the adapter's parameters. PEFT is not asked: it would make tensors."""
    targets = adapted_targets(model, TARGETS)
    layers = [
        module
        for name, module in model.get_decoder().named_modules()
        if name.rpartition(".")[2] in targets and isinstance(module, torch.nn.Linear)
    ]
    return {
        "adapted": len(layers),
        "targets": targets,
        "experts": has_experts(model),
        "adaptable_experts": has_fused_experts(model),
        "parameters": sum(rank * (layer.in_features + layer.out_features) for layer in layers),
    }


def _probe_template(directory: Path, trust_remote_code: bool) -> dict[str, Any]:
    """What the model's own tokenizer renders.

    Returns:
        `error`: why nothing is rendered, or None. `tools`: whether the tools of a request are in the prompt. `calls`:
        whether a tool call of an earlier turn is. `results`: whether a tool's result is. `thoughts`: whether a thought
        of the last turn is.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(directory, trust_remote_code=trust_remote_code)
        plain = tokenizer.apply_chat_template([_QUESTION], tokenize=False, add_generation_prompt=True)
    except Exception as error:
        return {"error": _first_line(error), "tools": False, "calls": False, "results": False, "thoughts": False}

    def shows(text: str, messages: list[dict[str, Any]], **more: Any) -> bool:
        try:
            return text in tokenizer.apply_chat_template(messages, tokenize=False, **more)
        except Exception:  # templates raise what they like; the text is not shown then
            return False

    call = {
        "id": "call-00001",
        "type": "function",
        "function": {"name": "look_up_word", "arguments": {"word": "heron"}},
    }
    as_text = {**call, "function": {"name": "look_up_word", "arguments": '{"word": "heron"}'}}
    result = {"role": "tool", "tool_call_id": "call-00001", "name": "look_up_word", "content": "a long-legged bird"}
    conversations: list[list[dict[str, Any]]] = [
        [_QUESTION, {"role": "assistant", "content": None, "tool_calls": [tool_call]}] for tool_call in (call, as_text)
    ]
    thought = {"role": "assistant", "content": "A bird.", "reasoning_content": _THOUGHT, "thinking": _THOUGHT}
    return {
        "error": None if plain else "the template renders nothing",
        "tools": shows("look_up_word", [_QUESTION], tools=[_TOOL], add_generation_prompt=True),
        "calls": any(shows("look_up_word", messages, tools=None) for messages in conversations),
        "results": any(shows("a long-legged bird", [*messages, result], tools=[_TOOL]) for messages in conversations),
        "thoughts": shows(_THOUGHT, [_QUESTION, thought]),
    }


def _first_line(error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return "the model needs the Python code in its directory, which runs with trust_remote_code only"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="the model's configuration and tokenizer")
    parser.add_argument("--rank", type=int, default=8, help="LoRA rank of policies")
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code in the model's directory")
    args = parser.parse_args()
    print(json.dumps(examine(args.directory, args.rank, trust_remote_code=args.trust_remote_code)))


if __name__ == "__main__":
    main()
