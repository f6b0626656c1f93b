"""README.md of an exported version: what it is, how it came to be, how to load it. For people and for model hubs."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence

from trainer_server.wire import ExportFormat, Policy, Version

_SHOWN = ("reward_mean", "reward_std", "loss", "loss_last", "entropy", "kl", "grad_norm", "tokens_trained")
_LIBRARY = {"peft": "peft", "merged": "transformers", "gguf": "gguf"}


def model_card(policy: Policy, record: Version, history: Sequence[Version], base: str, format: ExportFormat) -> str:
    """Markdown with YAML front matter. history: the versions that led to `record`, oldest first, as far as they are
    known; base: hub id or name of the base model."""
    name = f"{policy.name}@{record.version}"
    front = {
        "base_model": base,
        "library_name": _LIBRARY[format],
        "pipeline_tag": "text-generation",
        "tags": ["art-langgraph", "reinforcement-learning", "grpo", "lora"],
    }
    if format == "peft":
        front["base_model_relation"] = "adapter"
    made = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    rows = [
        ("policy", policy.name),
        ("version", str(record.version)),
        ("base model", base),
        ("made", f"{made:%Y-%m-%d %H:%M} UTC"),
        ("LoRA", f"rank {policy.spec.rank}, alpha {policy.spec.alpha:g}, on {', '.join(policy.spec.targets)}"),
    ]
    if policy.spec.fork_of:
        rows.append(("forked from", f"{policy.spec.fork_of.policy}@{policy.spec.fork_of.version}"))
    if record.score is not None:
        rows.append((f"score ({record.scored_by})", f"{record.score:.4g}"))
    lines = [
        "---",
        # A JSON value is a YAML value: names with `:` or `#` in them stay names.
        *(f"{key}: {json.dumps(value)}" for key, value in front.items()),
        "---",
        "",
        f"# {name}",
        "",
        f"{_WHAT[format]} Trained with art-langgraph.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in rows),
        "",
        "## Load it",
        "",
        _LOAD[format].format(base=base, name=policy.name),
        "",
        *_training(history),
    ]
    return "\n".join(lines)


def _training(history: Sequence[Version]) -> list[str]:
    steps = [one for one in history if any(key in one.metrics for key in _SHOWN)]
    shown = [key for key in _SHOWN if any(key in one.metrics for one in steps)]
    if not steps:
        return ["Not trained yet.", ""]
    return [
        "## Training",
        "",
        "Each row is the step that made a version; its rewards are those of the rollouts that it learnt from.",
        "",
        f"| version | {' | '.join(shown)} |",
        f"|---|{'---|' * len(shown)}",
        *(f"| {one.version} | {' | '.join(_text(one.metrics.get(key)) for key in shown)} |" for one in steps),
        "",
    ]


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


_WHAT = {
    "peft": "A LoRA adapter in PEFT's format.",
    "merged": "A base model with a LoRA adapter merged into it.",
    "gguf": "A base model with a LoRA adapter merged into it, as GGUF.",
}
_LOAD = {
    "peft": """\
```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "PATH/TO/THIS/DIRECTORY")
tokenizer = AutoTokenizer.from_pretrained("{base}")
```

```console
$ vllm serve {base} --enable-lora --lora-modules {name}=PATH/TO/THIS/DIRECTORY
```""",
    "merged": """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("PATH/TO/THIS/DIRECTORY")
tokenizer = AutoTokenizer.from_pretrained("PATH/TO/THIS/DIRECTORY")
```

```console
$ vllm serve PATH/TO/THIS/DIRECTORY
```""",
    "gguf": """\
```console
$ llama-cli -m model.gguf --jinja
```

```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("PATH/TO/THIS/DIRECTORY", gguf_file="model.gguf")
```""",
}
