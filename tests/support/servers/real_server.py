"""The real server as a user starts it: vLLM on the embedded model or its first layers, and the trainer."""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.training.models import first_layers
from trainer_server.common import Connection, Home
from trainer_server.engines.package_models import EMBEDDED, PACKAGE_MODELS
from trainer_server.process.hardware import cpu_dtype
from trainer_server.wire import Completion


@dataclass(frozen=True, slots=True)
class Real:
    connection: Connection
    home: Home
    cache: Path
    processes: list[psutil.Process]
    model: Path

    def engine(self) -> psutil.Process:
        """The guard of vLLM."""
        return psutil.Process(int((self.home.logs / "engine.pid").read_text().split()[0]))

    def http(self, **options: Any) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.connection.api_key}"}
        return httpx.AsyncClient(base_url=self.connection.url, headers=headers, timeout=600, **options)


def short_model(where: Path) -> Path:
    """Four layers of the embedded model under its name, with its tokenizer. What it answers makes no sense."""
    whole = PACKAGE_MODELS["embedded"].ensure(Home.find().cache)
    shutil.copytree(whole, where / EMBEDDED, ignore=shutil.ignore_patterns("*.safetensors*"))
    return first_layers(whole, 4, where / EMBEDDED)


def gap(real: Real, model: str, completion: Completion) -> float:
    """Mean |log-prob by transformers and PEFT − log-prob that vLLM reported|, in nats per token.

    Computed in the type that vLLM computes in here: a processor without bf16 emulates it, and takes ten times as long.
    """
    import torch

    prompt = len(completion.prompt_token_ids)
    tokens = torch.tensor(completion.prompt_token_ids + completion.token_ids)
    with torch.no_grad():
        logits = _trainers_model(real.model, real.home, model)(tokens[None]).logits[0, prompt - 1 : -1].float()
    logp = logits.log_softmax(-1).gather(1, tokens[prompt:, None])[:, 0]
    return float((logp - torch.tensor(completion.logprobs)).abs().mean())


@functools.lru_cache(maxsize=4)
def _trainers_model(base: Path, home: Home, name: str) -> Any:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, cpu_dtype()))
    policy, _, version = name.partition("@")
    return PeftModel.from_pretrained(model, str(home.policies / policy / "versions" / version)) if version else model
