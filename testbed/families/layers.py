"""What adapters do to a model of random weights and few layers: the trainer's step and the real vLLM, in figures.

Shapes: T tokens.
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
from peft import PeftModel
from transformers import AutoModelForCausalLM

from testbed.families import adapter_logprobs
from trainer_server.common import Home
from trainer_server.engines.model_files import ModelFiles
from trainer_server.engines.vllm.install import PLUGINS, engine_python
from trainer_server.training.model.lora import model_targets
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import pack
from trainer_server.wire import PolicySpec

_LEAST_MOVE = 0.2
"""Nats per token: an adapter's B is doubled until it moves the trainer's log-probabilities as much."""
_DOUBLINGS = 6
"""At most: norms of queries and keys limit how far their layers move anything."""
_TOKENS = 40
_ERROR = 0.25
"""vLLM computes in bf16: 0.04 to 0.1 was measured. An adapter that it does not apply has an error of 1 or more."""
_TREE = ((24, 12), (24, 9), (30, 15))
"""Tokens of the prompt and of the answer of sequences that begin alike."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What an adapter does to the log-probabilities of the same tokens. Both (T,), in nats."""

    trainer_T: torch.Tensor
    engine_T: torch.Tensor
    refusal: str | None = None
    """Why vLLM did not take the adapter; `engine_T` is 0 then."""

    @property
    def error(self) -> float:
        """Mean difference of the two, of the trainer's mean move."""
        return float((self.trainer_T - self.engine_T).abs().mean() / self.trainer_T.abs().mean())

    @property
    def applies(self) -> bool:
        """Whether vLLM applies the adapter as the trainer does."""
        return self.error < _ERROR


def measure_moves(model: Path, where: Path, dtype: str = "bfloat16") -> dict[str, Moves]:
    """By target: the moves by an adapter that has this target alone; by `all`: by one that has all of them.

    Args:
        model: The model's directory.
        where: The adapters are written there.
        dtype: In which vLLM computes. The trainer computes in fp32.
    """
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
        "options": {"dtype": dtype, **({"language_model_only": True} if files.reads_videos else {})},
    }
    engine = _engine_logprobs(job)
    base_T = torch.tensor(engine["base"])
    moves = {}
    for name, moved_T in trainer.items():
        found = engine[name]
        refused = isinstance(found, str)
        engine_T = torch.zeros_like(base_T) if refused else torch.tensor(found) - base_T
        moves[name] = Moves(moved_T, engine_T, found if refused else None)
    return moves


def step_error(model: Path, adapter: Path) -> float:
    """How exact a step is, in fp32: rows of several answers against transformers and PEFT, one sequence at a time.

    Args:
        model: The model's directory.
        adapter: That of an adapter with B ≠ 0.

    Returns:
        The larger of: the largest difference of a log-probability, nats; the relative error of the LoRA's gradient.
    """
    policy = PolicyModel(str(model), dtype=torch.float32, device="cpu")
    policy.load(PolicySpec(name="policy"), adapter)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    stock: Any = PeftModel.from_pretrained(base, str(adapter), is_trainable=True).train()
    tokens = np.random.default_rng(0).integers(3, 256, 30)
    prompts = [tokens[:prompt] for prompt, _ in _TREE]
    answers = [np.random.default_rng(at + 1).integers(3, 256, answer) for at, (_, answer) in enumerate(_TREE)]
    mine = [weight for _, weight in policy.parameters()]
    theirs = [weight for name, weight in sorted(stock.named_parameters()) if "lora_" in name]

    def result(logps: dict[tuple[int, int], torch.Tensor], weights: list[torch.nn.Parameter]) -> tuple[Any, Any]:
        ordered = torch.stack([logps[key] for key in sorted(logps)])
        grads = torch.autograd.grad((ordered * torch.arange(1, len(ordered) + 1)).sum(), weights)
        return ordered.detach(), torch.cat([grad.flatten() for grad in grads])

    found: dict[tuple[int, int], torch.Tensor] = {}
    for row in pack(prompts, answers, budget=1024, share=policy.share).rows:
        logp_R, _ = policy.logprobs(row, torch.ones(len(row.target_R)))
        found |= dict(zip(zip(row.source_R.tolist(), row.offset_R.tolist(), strict=True), logp_R, strict=True))
    expected: dict[tuple[int, int], torch.Tensor] = {}
    for at, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        ids_1T = torch.from_numpy(np.concatenate([prompt, answer])[:-1])[None]
        logp_TV = stock(input_ids=ids_1T, use_cache=False).logits[0].log_softmax(-1)
        expected |= {(at, j): logp_TV[len(prompt) - 1 + j, token] for j, token in enumerate(answer.tolist())}
    (logps, gradient), (logps_expected, gradient_expected) = result(found, mine), result(expected, theirs)
    relative = (gradient - gradient_expected).norm() / gradient_expected.norm()
    return max(float((logps - logps_expected).abs().max()), float(relative))


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
