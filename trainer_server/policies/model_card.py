"""README.md of an exported version, for people and model hubs: what it is, how it was trained, how to load it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence

from trainer_server.wire import ExportFormat, Policy, Version

_TABLE_METRICS = ("reward_mean", "reward_std", "loss", "loss_last", "entropy", "kl", "grad_norm", "tokens_trained")
"""Metrics in the table of training steps."""
_LIBRARY = {"peft": "peft", "merged": "transformers", "gguf": "gguf"}


def model_card(policy: Policy, record: Version, history: Sequence[Version], base: str, format: ExportFormat) -> str:
    """The text of a model card: Markdown with YAML front matter.

    Args:
        policy: The policy.
        record: The exported version.
        history: The known versions that led to `record`, oldest first.
        base: Hub id or name of the base model.
        format: Format of the export.
    """
    name = f"{policy.name}@{record.version}"
    front = {
        "base_model": base,
        "library_name": _LIBRARY[format],
        "pipeline_tag": "text-generation",
        "tags": ["art-langgraph", "reinforcement-learning", "grpo", "lora"],
    }
    if format == "peft":
        front["base_model_relation"] = "adapter"
    creation = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    rows = [
        ("policy", policy.name),
        ("version", str(record.version)),
        ("base model", f"{base}, commit {record.base_revision}" if record.base_revision else base),
        ("made", f"{creation:%Y-%m-%d %H:%M} UTC"),
        ("LoRA", f"rank {policy.spec.rank}, alpha {policy.spec.alpha:g}, on {', '.join(policy.spec.targets)}"),
    ]
    if policy.spec.fork_of:
        rows.append(("forked from", f"{policy.spec.fork_of.policy}@{policy.spec.fork_of.version}"))
    if record.score is not None:
        rows.append((f"score ({record.scored_by})", f"{record.score:.4g}"))
    lines = [
        "---",
        # Every JSON value is a YAML value, also a name with `:` or `#`.
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
        _LOAD[format].format(
            base=base,
            name=policy.name,
            python_revision=f', revision="{record.base_revision}"' if record.base_revision else "",
            vllm_revision=f" --revision {record.base_revision}" if record.base_revision else "",
        ),
        "",
        *_training(history),
    ]
    return "\n".join(lines)


def _training(history: Sequence[Version]) -> list[str]:
    steps = [version for version in history if any(key in version.metrics for key in _TABLE_METRICS)]
    columns = [key for key in _TABLE_METRICS if any(key in version.metrics for version in steps)]
    if not steps:
        return ["Not trained yet.", ""]
    return [
        "## Training",
        "",
        "Each row is the step that made a version; its rewards are those of the rollouts that it learnt from.",
        "",
        f"| version | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
        *(f"| {step.version} | {' | '.join(_text(step.metrics.get(key)) for key in columns)} |" for step in steps),
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

base = AutoModelForCausalLM.from_pretrained("{base}"{python_revision})
model = PeftModel.from_pretrained(base, "PATH/TO/THIS/DIRECTORY")
tokenizer = AutoTokenizer.from_pretrained("{base}"{python_revision})
```

```console
$ vllm serve {base}{vllm_revision} --enable-lora --lora-modules {name}=PATH/TO/THIS/DIRECTORY
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
