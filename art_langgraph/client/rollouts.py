"""Rollouts at the trainer server: registered, read, listed, rewarded. A part of TrainerClient."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

from art_langgraph.client.api import ServerAPI
from art_langgraph.trajectory import Trajectory
from trainer_server.wire import Reward, RolloutList, RolloutListed, RolloutSpec
from trainer_server.wire.jsonl import to_json

_JSON = {"Content-Type": "application/json"}
_PAGE = 500


class RolloutAPI(ServerAPI):
    """Rollouts. See `TrainerClient`."""

    async def register_rollout(self, rollout_id: str, spec: RolloutSpec) -> None:
        """Says what holds for all requests of a rollout, before its first one.

        Args:
            rollout_id: Your id of it: 1 to 200 letters, digits, `.`, `_`, `:`, `~` and `-`. Its base URL is
                `<server>/rollouts/<id>/v1`.
            spec: Its scenario, version and temperature.
        """
        await self._ask("PUT", _path(rollout_id), content=to_json(spec), headers=_JSON)

    async def rollout(self, rollout_id: str) -> Trajectory:
        """What a rollout did, by the ledger: its completions, its tool calls and their results, its reward."""
        return Trajectory.model_validate_json((await self._ask("GET", _path(rollout_id))).content)

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
        body = to_json(Reward(reward=reward, metrics=dict(metrics or {}), **more))
        answer = await self._ask("POST", f"{_path(rollout_id)}/reward", content=body, headers=_JSON)
        return Trajectory.model_validate_json(answer.content)

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
            asked = {name: value for name, value in query.items() if value is not None}
            page = RolloutList.model_validate_json((await self._ask("GET", "/api/rollouts", params=asked)).content)
            for listed in page.rollouts:
                yield listed
            after = page.next


def _path(rollout_id: str) -> str:
    return f"/api/rollouts/{quote(rollout_id, safe='')}"
