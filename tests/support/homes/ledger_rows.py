"""Rows of the ledger, made up."""

from __future__ import annotations

import time

from trainer_server.wire import Completion, CompletionStatus, Sampling


def row(one: str, created: float | None = None) -> Completion:
    return Completion(
        id=one, created=time.time() if created is None else created, server_id="s", base_model="b", tokenizer="t",
        policy="agent", version=1, status=CompletionStatus.complete, sampling=Sampling(), prompt_token_ids=[1, 2],
        token_ids=[3, 4], logprobs=[-0.5, -0.25],
    )  # fmt: skip
