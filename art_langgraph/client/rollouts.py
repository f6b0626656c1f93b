"""Rollouts at the trainer server: register, read, list and reward them. A part of TrainerClient."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from art_langgraph.client.api import ServerAPI
from art_langgraph.redaction import redact
from art_langgraph.trajectory import Trajectory
from trainer_server.wire import Erase, Erased, Reward, RolloutList, RolloutListed, RolloutSpec, RunTrace, ServerError
from trainer_server.wire.rollouts import rollout_api_path

_PAGE = 500
_ROLLOUTS_OF_A_REQUEST = 1000
"""Rollouts that one request deletes."""
_AT_ONCE = 16
"""Rollouts that are read at once."""


class RolloutAPI(ServerAPI):
    """The methods of `TrainerClient` for rollouts."""

    async def register_rollout(self, rollout_id: str, spec: RolloutSpec) -> None:
        """Registers what holds for all requests of a rollout, before its first one.

        Args:
            rollout_id: Your id of it: 1 to 200 letters, digits, `.`, `_`, `:`, `~` and `-`. Its base URL is
                `<server>/rollouts/<id>/v1`.
            spec: Its scenario, version and temperature.
        """
        await self._request("PUT", rollout_api_path(rollout_id), record=redact(spec))

    async def rollout(self, rollout_id: str, *, messages: bool = True) -> Trajectory:
        """What a rollout did, by the ledger: its completions, its tool calls and their results, its reward.

        Args:
            rollout_id: Its id.
            messages: Whether with the messages of its requests, and the results of tool calls that are in them.

        Raises:
            ServerError: 413, the messages are too large for one answer (64 MiB).
        """
        params = {} if messages else {"messages": False}
        return await self._read(Trajectory, "GET", rollout_api_path(rollout_id), params=params)

    async def trace(self, rollout_id: str) -> RunTrace:
        """What a client reported to the server of a run that has ended: its nodes, calls and rewards.

        Args:
            rollout_id: Id of the rollout, or of its trajectory.

        Raises:
            ServerError: 404 where no client reported it.
        """
        return await self._read(RunTrace, "GET", f"{rollout_api_path(rollout_id)}/trace")

    async def reward_rollout(
        self, rollout_id: str, reward: float, metrics: Mapping[str, float] | None = None, **more: Any
    ) -> Trajectory:
        """Gives a rollout a reward. The last one counts.

        Args:
            rollout_id: Its id.
            reward: A finite number.
            metrics: Its parts, or what else was measured.
            more: Other fields of `Reward`.

        Returns:
            The whole rollout.

        Raises:
            ValueError: The reward is not finite.
        """
        record = Reward(reward=reward, metrics=dict(metrics or {}), **more)
        return await self._read(Trajectory, "POST", f"{rollout_api_path(rollout_id)}/reward", record=record)

    async def erase(self, rollout_ids: Sequence[str], completion_ids: Sequence[str] = ()) -> Erased:
        """Deletes rollouts with all that the server has of them: requests, answers, tokens, rewards, traces, and files
        of ended jobs that used them. The token needs the scope admin.

        Args:
            rollout_ids: Ids of rollouts; unknown ids are ignored.
            completion_ids: Ids of completions, those that belong to no rollout, for example.

        Raises:
            ServerError: 409, an open job needs one of them.
        """
        rest, total = list(completion_ids), Erased()
        for start in range(0, max(len(rollout_ids), 1), _ROLLOUTS_OF_A_REQUEST):
            body = Erase(rollouts=list(rollout_ids[start : start + _ROLLOUTS_OF_A_REQUEST]), completions=rest)
            counts = await self._read(Erased, "POST", "/api/rollouts/erase", record=body, timeout=600)
            rest = []
            total = Erased(
                rollouts=total.rollouts + counts.rollouts,
                completions=total.completions + counts.completions,
                jobs=total.jobs + counts.jobs,
                rewritten=total.rewritten and counts.rewritten,
            )
        return total

    async def rollouts(
        self, *, policy: str | None = None, rewarded: bool | None = None
    ) -> AsyncIterator[RolloutListed]:
        """Rollouts that were registered or rewarded, oldest first.

        Args:
            policy: Only those in which it had answered when they got their reward; None: all.
            rewarded: Only those with a reward, or only those without; None: all.
        """
        after: int | None = 0
        while after is not None:
            query = {"policy": policy, "rewarded": rewarded, "after": after, "limit": _PAGE}
            params = {name: value for name, value in query.items() if value is not None}
            page = await self._read(RolloutList, "GET", "/api/rollouts", params=params)
            for entry in page.rollouts:
                yield entry
            after = page.next


async def read_rollouts(client: RolloutAPI, ids: Iterable[str]) -> dict[str, Trajectory]:
    """Rollouts of the trainer server by their ids, without those that are gone. `_AT_ONCE` are read at once."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def read(rollout_id: str) -> Trajectory | None:
        async with limit:
            try:
                return await client.rollout(rollout_id)
            except ServerError as error:
                if error.status == 404:
                    return None
                raise

    ids = list(ids)
    runs = await asyncio.gather(*map(read, ids))
    return {rollout_id: run for rollout_id, run in zip(ids, runs, strict=True) if run is not None}
