"""Steps by all ranks that a launcher has started; the first writes what came out: `python -m … MODEL OUT CASES`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from tests.support.training.worker import COMPLETIONS, completion, groups
from trainer_server.jobs.demonstrations import Demonstrations, Row
from trainer_server.training.grpo.batch import Origin, gather_batch
from trainer_server.training.grpo.step import optimise
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import pack
from trainer_server.training.optimizer import make_optimizer
from trainer_server.training.ranks import Ranks
from trainer_server.training.sft.warm_start import warm_start
from trainer_server.wire import GRPOConfig, PolicySpec, SFTConfig


@torch.no_grad()
def layers_gathered(model: PolicyModel) -> int:
    """Layers whose weights are whole here after a forward pass that no backward pass follows."""
    (row,) = pack([np.array([1, 2])], [np.array([3])], budget=9).rows
    model.logprobs(row, torch.ones(1))
    layers = model._base.get_decoder().layers
    return sum(not isinstance(layer.self_attn.q_proj.base_layer.weight, DTensor) for layer in layers)


@contextmanager
def other(model: PolicyModel) -> Iterator[str]:
    """A teacher: other weights of the LoRA, the same on all ranks."""
    generator = torch.Generator().manual_seed(7)
    own = {name: weight.detach().clone() for name, weight in model.parameters()}
    with torch.no_grad():
        for _, weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
        yield "other"
        for name, weight in model.parameters():
            weight.copy_(own[name])


def main(model_path: str, out: Path, cases: dict[str, Any]) -> None:
    ranks = Ranks.join()
    torch.set_num_threads(1)
    model = PolicyModel(model_path, dtype=torch.float32, device="cpu", ranks=ranks)
    found = [*COMPLETIONS, completion("c3", [9, 9, 4], version=0), completion("c4", [5, 6, 2, 2, 2])]
    group = groups(1.0, 0.0, 0.3, 0.7)
    group[0].trajectories[3].completions.append("c4")  # a run with two calls
    for name, options in cases.items():
        config = GRPOConfig(**options)
        batch = gather_batch(
            group, {one.id: one for one in found}, config, policy="p", version=0,
            origin=Origin("tiny", "tok"),
        )  # fmt: skip
        model.initialise(PolicySpec(name="p"))
        torch.manual_seed(0)
        optimizer = make_optimizer(model, config)
        metrics = optimise(
            model, optimizer, batch, config, lambda version: nullcontext(version == 0), lambda: other(model), ranks
        )
        del metrics["tokens"]  # for the dashboard, and no JSON
        whole = layers_gathered(model) if ranks.shards_model else 0
        if ranks.first:
            moments = {weight: optimizer.state[one]["exp_avg"] for weight, one in model.parameters()}
            save_file({weight: one.contiguous() for weight, one in moments.items()}, out / f"{name}.safetensors")
            (out / f"{name}.json").write_text(json.dumps({**metrics, "layers_gathered": whole}))
    warm_start_together(model, out, ranks)
    ranks.leave()


def warm_start_together(model: PolicyModel, out: Path, ranks: Ranks) -> None:
    """A warm start with validation and a clock by all ranks; the first writes its weights and metrics."""
    model.initialise(PolicySpec(name="p"))
    rows = [Row(ids=[1, 2, 3, *answer], loss_spans=[(3, 3 + len(answer))]) for answer in ([5, 6], [5, 9], [8, 6, 7])]
    demonstrations = Demonstrations(rows=rows, turns=3, validation=Demonstrations(rows=rows[:1], turns=1))
    config = SFTConfig(lr=1e-3, adam_epsilon=1e-3, per_device_train_batch_size=2, num_train_epochs=2, max_seconds=1e6)
    metrics = warm_start(model, demonstrations, config, ranks=ranks)
    if ranks.first:
        weights = {name: weight.detach().contiguous() for name, weight in model.parameters()}
        save_file(weights, out / "warm start.safetensors")
        (out / "warm start.json").write_text(json.dumps(metrics))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
