"""The trainer in this process, on a tiny model, with a ledger of made-up completions."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

from tests.support.training.models import ARCHITECTURES, tiny_model
from trainer_server.common import Home
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.training.grpo.batch import Origin
from trainer_server.training.worker import Worker
from trainer_server.wire import (
    Completion,
    CompletionStatus,
    GroupRef,
    GRPOConfig,
    PolicySpec,
    Sampling,
    StepRequest,
    TrajectoryRef,
)

gc.freeze()  # a worker collects garbage after each job: it need not look at the modules of torch each time


def completion(one: str, tokens: list[int], **changes: Any) -> Completion:
    values: dict[str, Any] = {
        "id": one, "created": 0.0, "server_id": "srv", "base_model": "tiny", "tokenizer": "tok", "policy": "p",
        "version": 0, "status": CompletionStatus.complete, "finish_reason": "stop", "sampling": Sampling(),
        "prompt_token_ids": [1, 2, 3], "token_ids": tokens, "logprobs": [-2.0] * len(tokens),
    }  # fmt: skip
    return Completion(**{**values, **changes})


def groups(*rewards: float | None, start: int = 0) -> list[GroupRef]:
    refs = [TrajectoryRef(id=f"t{i}", reward=r, completions=[f"c{start + i}"]) for i, r in enumerate(rewards)]
    return [GroupRef(scenario_id="s", trajectories=refs)]


COMPLETIONS = [completion("c0", [5, 6, 7]), completion("c1", [5, 9]), completion("c2", [8, 6, 7, 1])]


def make_worker(where: Path) -> Worker:
    home = Home(where / "home")
    ledger = SQLiteLedger(home.ledger)
    asyncio.run(ledger.add(*COMPLETIONS))
    ledger.close()
    model = tiny_model(where / "model", ARCHITECTURES["llama"])
    made = Worker(home, model, ledger=ledger, origin=Origin("tiny", "tok"))
    made.store.register(PolicySpec(name="p"), "tiny")
    made.do(made.queue.accept("create", "p", spec=PolicySpec(name="p")))
    return made


def step(worker: Worker, refs: list[GroupRef], **config: Any) -> Any:
    request = StepRequest(groups=refs, config=GRPOConfig(**{"max_logp_gap": None, **config}))  # made-up log-probs
    job = worker.queue.accept("step", "p", request=request)
    worker.do(job)
    trained = worker.queue.training_outcome(job.id)
    assert trained is not None
    return trained
