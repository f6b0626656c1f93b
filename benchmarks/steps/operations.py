"""Operations that a step dispatches, of random models of few layers: what a GPU would launch, counted without one.

    python -m benchmarks.steps.operations [--dtype bfloat16] [--json]

A layer's are the difference between a model of three layers and one of two. Views and bare allocations compute nothing
and are not counted. A row is one minibatch of 8 completions on a prompt: forward and backward pass, loss, clipping and
AdamW; its second step is counted, so that nothing is set up any more.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen3Config

from benchmarks.steps.cases import Run
from benchmarks.steps.sides import Packed, randomise
from trainer_server.training.model.tree import pack

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
CONFIGS: dict[str, type[PretrainedConfig]] = {"Qwen3": Qwen3Config, "Llama": LlamaConfig}
_NOTHING = ("aten._unsafe_view", "aten.empty", "aten.new_empty", "aten._reshape_alias")


class Operations(TorchDispatchMode):
    """Counts the operations that are dispatched in its `with`, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if not func.is_view and not name.startswith(_NOTHING):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def runs() -> list[Run]:
    """Eight completions of 20 tokens on one prompt of 60."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, SIZES["vocab_size"], 60)
    return [Run(((prompt, rng.integers(0, SIZES["vocab_size"], 20)),), float(rng.normal())) for _ in range(8)]


@contextmanager
def side(config: type[PretrainedConfig], layers: int, dtype: torch.dtype) -> Iterator[Packed]:
    """This project's step on a random model of so many layers."""
    with tempfile.TemporaryDirectory() as where:
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config(**SIZES, num_hidden_layers=layers)).save_pretrained(Path(where))
        packed = Packed(where, dtype)
    randomise(packed.named)
    yield packed


def passes(packed: Packed) -> dict[str, Counter[str]]:
    """Operations of the passes over a row, and of a whole step on it, by phase."""
    calls = [call for run in runs() for call in run.calls]
    (row,) = pack([prompt for prompt, _ in calls], [answer for _, answer in calls], budget=10_000).rows
    packed.step(runs(), 10_000)
    with Operations() as forward:
        logp_R, _ = packed.model.logprobs(row, torch.ones(len(row.target_R)))
    with Operations() as backward:
        logp_R.sum().backward()  # type: ignore[no-untyped-call]
    packed.optimizer.zero_grad(set_to_none=True)
    with Operations() as step:
        packed.step(runs(), 10_000)
    return {"forward": forward.counts, "backward": backward.counts, "step": step.counts}


def of_layer(config: type[PretrainedConfig], dtype: torch.dtype) -> dict[str, Counter[str]]:
    """Operations of one layer by phase."""
    by_layers = []
    for layers in (2, 3):
        with side(config, layers, dtype) as packed:
            by_layers.append(passes(packed))
    few, many = by_layers
    return {phase: many[phase] - few[phase] for phase in many}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    table = Table("model", "forward of a layer", "backward of a layer", "whole step, a layer", "whole step, 2 layers")
    rows: dict[str, Any] = {}
    for name, config in CONFIGS.items():
        layer = of_layer(config, dtype)
        with side(config, 2, dtype) as packed:
            whole = passes(packed)["step"].total()
        rows[name] = {**{phase: counts.total() for phase, counts in layer.items()}, "step_of_two_layers": whole}
        table.add_row(name, *map(str, rows[name].values()))
    Console(stderr=options.json).print(table)
    if options.json:
        print(json.dumps({"benchmark": "operations", "dtype": options.dtype, "models": rows}))


if __name__ == "__main__":
    main()
