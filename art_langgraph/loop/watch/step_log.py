"""What `train` notes of each step: what it cost, for its record, and all of it for the trackers."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from art_langgraph.client.client import TrainerClient
from art_langgraph.costs.meter import CostMeter
from art_langgraph.loop.failures import runs_of
from art_langgraph.loop.watch.record import StepRecord
from trainer_server.common import Home
from trainer_server.tracking import CLIENT_TRACKERS, TrackedRun, Tracker, Tracking, make_trackers, named_by, run_id

log = logging.getLogger("art_langgraph")


class StepLog:
    """Costs and trackers of a call of `train`: `async with` around it, `begin`, then `add` for each record.

    Args:
        trackers: Trackers that get the steps: names such as "wandb", places `module:Class`, or objects with the methods
            of `Tracker`. None: those that `ART_TRACKERS` in the environment names.
        client: The trainer server.

    Raises:
        ConfigError: There is no such tracker, its library is missing, or its settings are; or the price of a GPU-hour
            in the environment is no number.
    """

    def __init__(self, trackers: Sequence[str | Tracker] | None, client: TrainerClient) -> None:
        self._client, self._meter = client, CostMeter(client.health)
        if trackers is None:
            instances = make_trackers(named_by(os.environ), CLIENT_TRACKERS, option="ART_TRACKERS")
        else:
            instances = make_trackers(trackers, CLIENT_TRACKERS, option="tracker")
        self._tracking = Tracking(instances, log.warning)

    async def begin(self, policy: str, run: str, config: Mapping[str, Any]) -> None:
        """Tells the trackers that the training begins.

        Args:
            policy: Name of the policy.
            run: Name of the training; empty: it has none, and cannot be continued.
            config: Settings of the training, as JSON.
        """
        if not self._tracking:
            return
        creation = (await self._client.policy(policy)).created
        name = run or f"{policy} {time.strftime('%Y-%m-%d %H:%M')}"
        self._tracking.start(
            TrackedRun(
                policy=policy,
                name=name,
                id=run_id(policy, run, creation) if run else run_id(policy, uuid.uuid4().hex),
                kind="train",
                home=Home.find().root,
                config=config,
            )
        )

    async def add(self, record: StepRecord) -> None:
        """Adds to a step's record what it cost, and sends it to the trackers, which nothing waits for."""
        record.cost = await self._meter.step(record.runs, record.trained, record.success)
        record.spent = self._meter.run
        if not self._tracking:
            return
        runs = runs_of(record.groups)
        if record.evaluation is not None:
            runs += record.evaluation.trajectories
        self._tracking.log(record.step, record.summary(), runs)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits until the trackers have what there was, for `FLUSH_SECONDS` at most."""
        if not self._tracking:
            return
        is_success = error is None or isinstance(error, GeneratorExit)  # the caller left the loop: that is no failure
        await asyncio.to_thread(self._tracking.finish, None if is_success else f"{kind and kind.__name__}: {error}")
