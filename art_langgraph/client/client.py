"""TrainerClient: the trainer server's control API."""

from __future__ import annotations

from typing import Any

from art_langgraph.client.jobs import JobAPI
from art_langgraph.client.policies import PolicyAPI
from art_langgraph.client.rollouts import RolloutAPI
from trainer_server.wire import Completion


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
        """`{"ready", "engines", "trainer", "error"}`: whether completions can be answered now, and by which engines;
        whether the trainer runs; what has failed."""
        health: dict[str, Any] = (await self._ask("GET", "/health")).json()
        return health

    async def completion(self, completion_id: str) -> Completion:
        """The ledger's record of a completion: exact tokens, log-probabilities, version."""
        return Completion.model_validate_json((await self._ask("GET", f"/api/completions/{completion_id}")).content)
