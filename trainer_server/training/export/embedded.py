"""Turns a GGUF checkpoint into what vLLM and transformers read: bf16 safetensors, a tokenizer, a chat template."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

TEMPLATE = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system = 'You are a helpful AI assistant named SmolLM, trained by Hugging Face' %}
    {%- set turns = messages %}
{%- endif %}
{{- '<|im_start|>system\\n' + system }}
{%- if tools %}
    {{- '\\nTools:' }}
    {%- for tool in tools %}
        {%- set function = tool.function %}
        {{- '\\n' + function.name + '(' }}
        {%- for name, schema in ((function.parameters or {}).properties or {}).items() %}
            {{- (', ' if not loop.first else '') + name + ': ' }}
            {%- if schema.enum %}{{- schema.enum | join(' | ') }}
            {%- else %}{{- schema.type if schema.type is string else schema | tojson }}{%- endif %}
        {%- endfor %}
        {{- ')' + (' ' + function.description if function.description else '') }}
    {%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in turns %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>tool\\n' + (message.content or '') + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function if call.function else call %}
            {%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>{"name": "' + function.name + '", "arguments": ' }}
            {{- function.arguments if function.arguments is string else function.arguments | tojson }}
            {{- '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""ChatML with Hermes-style tool calls, `<tool_call>{json}</tool_call>`; a result is a turn of the role `tool`.

Tools are listed as signatures: a small model reads them better than JSON schemas, for a fifth of the tokens."""


GEMMA_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
    {{- (message.content or '') + (eos_token if message.role == 'assistant' else '<end_of_turn>') + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\\n' }}
{%- endif %}
"""
"""Turns in Gemma's marks for a base model of it, which ends with its own end token and knows no tools."""

TEMPLATES = {"smollm2": TEMPLATE, "gemma3": GEMMA_TEMPLATE}


def convert(gguf: Path, out: Path, template: str | None = None) -> None:
    """Writes the model of `gguf` into the directory `out` (made if missing).

    Args:
        gguf: The checkpoint.
        out: The directory.
        template: A name in `TEMPLATES`; None: the checkpoint's own chat template.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if template:
        tokenizer.chat_template = TEMPLATES[template]
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--template", choices=TEMPLATES)
    args = parser.parse_args()
    convert(args.gguf, args.out, args.template)
