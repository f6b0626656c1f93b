"""Adapters of one kind of linear layer each: how they move the trainer's and the real vLLM's log-probabilities.

Models have random weights and few layers. Shapes: T tokens.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from tests.support.engines import adapter_logprobs
from trainer_server.common import Home
from trainer_server.engines.model_files import ModelFiles
from trainer_server.engines.vllm.install import PLUGINS, engine_python
from trainer_server.training.model.lora import model_targets
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import pack
from trainer_server.wire import PolicySpec

SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 128**-0.5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GATED_DELTA = {
    "head_dim": 32,
    "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 128}
FAMILIES: dict[str, dict[str, Any]] = {
    # As checkpoints have it, with a vision tower: the trainer and vLLM load other classes of it.
    "Qwen3.5": {
        "model_type": "qwen3_5",
        "text_config": {**SIZES, **GATED_DELTA},
        "vision_config": {**VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": []},
        **dict(zip(("image_token_id", "video_token_id", "vision_start_token_id"), range(250, 253), strict=True)),
    },
    "Granite hybrid": {
        "model_type": "granitemoehybrid",
        **SIZES,
        "num_hidden_layers": 3,
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 0,
        "shared_intermediate_size": 192,
        "mamba_n_heads": 4,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 32,
        "mamba_chunk_size": 256,
        "mamba_expand": 2,
        "attention_multiplier": 0.18,
    },
    "Phi-3": {"model_type": "phi3", **SIZES, "num_hidden_layers": 2},
}
_LEAST_MOVE = 0.2
"""Nats per token: an adapter's B is doubled until it moves the trainer's log-probabilities as much."""
_DOUBLINGS = 6
"""At most: norms of queries and keys limit how far their layers move anything."""
_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Moves:
    """What an adapter does to the log-probabilities of the same tokens. Both (T,), in nats."""

    trainer_T: torch.Tensor
    engine_T: torch.Tensor

    @property
    def error(self) -> float:
        """Mean difference of the two, of the trainer's mean move."""
        return float((self.trainer_T - self.engine_T).abs().mean() / self.trainer_T.abs().mean())


def family_model(config: dict[str, Any], where: Path) -> Path:
    """Writes a model with random weights."""
    values = dict(config)
    configuration = AutoConfig.for_model(values.pop("model_type"), **values)
    auto: Any = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    torch.manual_seed(0)
    auto.from_config(configuration).to(torch.bfloat16).save_pretrained(where)
    return where


def measure_moves(model: Path, where: Path) -> dict[str, Moves]:
    """By target: the moves by an adapter that has this target alone; by `all`: by one that has all of them."""
    policy = PolicyModel(str(model), dtype=torch.float32, device="cpu")
    tokens = torch.randint(3, 256, (_TOKENS,), generator=torch.Generator().manual_seed(0)).numpy()
    (row,) = pack([tokens[:1]], [tokens[1:]], budget=_TOKENS).rows
    own = model_targets(policy._base)

    @torch.no_grad()
    def logprobs() -> torch.Tensor:
        return policy.logprobs(row, torch.ones(_TOKENS - 1))[0]

    trainer: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(1)
    for name, targets in {"all": tuple(own), **{target: (target,) for target in own}}.items():
        policy.initialise(PolicySpec(name="policy", targets=targets))
        base_T = logprobs()
        with torch.no_grad():
            for weight_name, weight in policy.parameters():
                if "lora_B" in weight_name:
                    weight.copy_(torch.randn(weight.shape, generator=generator) * 0.02)
            for _ in range(_DOUBLINGS):
                if (logprobs() - base_T).abs().mean() >= _LEAST_MOVE:
                    break
                for weight_name, weight in policy.parameters():
                    if "lora_B" in weight_name:
                        weight.mul_(2)
            for _, weight in policy.parameters():
                weight.copy_(weight.bfloat16())
        trainer[name] = logprobs() - base_T
        (where / name).mkdir(parents=True)
        policy.save(where / name)
    files = ModelFiles(model)
    job = {
        "model": str(model),
        "targets": list(files.linear_layers),
        "adapters": {name: str(where / name) for name in trainer},
        "tokens": np.asarray(tokens).tolist(),
        "options": {"language_model_only": True} if files.reads_videos else {},
    }
    engine = _engine_logprobs(job)
    assert all(isinstance(found, list) for found in engine.values()), engine
    base_T = torch.tensor(engine["base"])
    return {name: Moves(moved_T, torch.tensor(engine[name]) - base_T) for name, moved_T in trainer.items()}


def _engine_logprobs(job: dict[str, Any]) -> dict[str, Any]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(PLUGINS),
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    line = [str(engine_python(Home.find().cache)), adapter_logprobs.__file__, json.dumps(job)]
    process = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stderr[-3000:]
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found
