"""TrainerClient: the trainer server's control API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from art_langgraph.client.jobs import JobAPI
from art_langgraph.client.policies import PolicyAPI
from art_langgraph.client.rollouts import RolloutAPI
from trainer_server.common.jsonl import to_json
from trainer_server.common.status import ServerStatus
from trainer_server.wire import Added, Completion, Completions, ServerError
from trainer_server.wire.bounds import ANSWER_TOO_LARGE

_PAGE = 100
"""Completions that one request asks for; fewer where the answer would be too large."""
_BODY = 8 * 2**20
"""Bytes of completions that one request brings, about."""


class TrainerClient(PolicyAPI, JobAPI, RolloutAPI):
    """Policies, steps, versions, rollouts and completions of a server: `async with TrainerClient() as trainer:`.

    All methods that send a request raise ServerError when the server refuses it (with its HTTP status), and
    ServerUnreachable when the server does not answer. While the server is gone, as during a restart, they ask again for
    `retry_for` seconds, and a warning says so. That is safe: steps carry an idempotency key, and all other requests are
    idempotent.

    Args:
        base_url: Address of the server; None: ART_BASE_URL, else the local server's file.
        api_key: Its key; None: ART_API_KEY, else the local server's file.
        retry_for: Seconds for which requests are repeated while no server answers; 0: not at all. None: ART_RETRY_FOR,
            else 120.

    Raises:
        ConfigError: There is no key, or `retry_for` is negative.
    """

    async def health(self) -> dict[str, Any]:
        """`{"ready", "engines", "concurrency", "trainer", "overlaps", "gpus", "gpu_hour_price", "error"}`: whether
        completions can be answered now, by which engines, and how many at once; whether the trainer runs, and whether
        it has GPUs of its own; what is paid for; what has failed."""
        health: dict[str, Any] = (await self._request("GET", "/health")).json()
        return health

    async def status(self) -> ServerStatus:
        """What the server works on now: engines, the line, open jobs by phase, policies with their last results, tokens
        per second, memory, and problems with their remedies."""
        return await self._read(ServerStatus, "GET", "/api/status")

    async def completion(self, completion_id: str) -> Completion:
        """The ledger's record of a completion: exact tokens, log-probabilities, version."""
        return await self._read(Completion, "GET", f"/api/completions/{completion_id}")

    async def completions(self, ids: Sequence[str]) -> dict[str, Completion]:
        """The same for many completions, by id. Those that the ledger does not have are left out."""
        rest, completions, most = list(dict.fromkeys(ids)), dict[str, Completion](), _PAGE
        while rest:
            page = rest[:most]
            try:
                answer = await self._read(Completions, "POST", "/api/completions/find", json={"ids": page}, timeout=600)
            except ServerError as error:
                if error.code != ANSWER_TOO_LARGE or len(page) == 1:
                    raise
                most = len(page) // 2
                continue
            rest = rest[most:]
            completions |= {completion.id: completion for completion in answer.completions}
        return completions

    async def add_completions(self, completions: Sequence[Completion]) -> Added:
        """Brings completions of another server's ledger to this one, which must have the same base model and tokenizer.

        They keep the id of the server that sampled them. Warm starts imitate them, and steps skip them
        (`other_server`). Rows that are there already are never overwritten.

        Args:
            completions: Of the other server, as its `completions` returned them.

        Returns:
            How many are new there, and how many were there.

        Raises:
            ServerError: The server has another base model or tokenizer, or another row of the same id.
        """
        total = Added(added=0, known=0)
        rows, size = list[str](), 0
        for at, completion in enumerate(completions, start=1):
            rows.append(to_json(completion))
            size += len(rows[-1])
            if size >= _BODY or at == len(completions):
                body = f'{{"completions": [{", ".join(rows)}]}}'
                counts = await self._read(Added, "POST", "/api/completions", record=body, timeout=600)
                total = Added(added=total.added + counts.added, known=total.known + counts.known)
                rows, size = [], 0
        return total
