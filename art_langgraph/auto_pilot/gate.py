"""Gate: held-out scenarios that a candidate is measured on before it answers anybody."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from art_langgraph.auto_pilot.settings import AutopilotOptions
from art_langgraph.loop.evaluate import Evaluation, evaluate, full_reward
from art_langgraph.loop.watch.held_out import Evaluations, HeldOut, input_id
from art_langgraph.store import TrajectoryStore
from trainer_server.wire import Policy

_RUN = "autopilot"
"""Name of the training run that the evaluations belong to."""


class Gate:
    """The scenarios of the gate, and what runs them.

    Without a graph or a reward function nothing can be measured: the canary alone decides then, and `missing` says so.
    The scenarios are kept out of the training in any case.

    Args:
        options: Of the autopilot. `gate` has the scenarios, `graph` runs them. `reward` and `success` hold where
            `gate` has none of its own. Under another `gate_name`, all versions are measured anew.
        store: Where evaluations are kept, so that no version is measured twice.

    Raises:
        ConfigError: The file of the scenarios cannot be read, or there are none in it.
    """

    def __init__(self, options: AutopilotOptions, store: TrajectoryStore) -> None:
        gate = options.gate
        self._held_out = None if gate is None else HeldOut.of(gate).resolve([], options.reward)
        if self._held_out and self._held_out.success is full_reward:
            self._held_out = replace(self._held_out, success=options.success)
        self._graph, self._store = options.graph, store
        self._run = f"{_RUN} {options.gate_name}" if options.gate_name else _RUN
        self._last: tuple[float, Evaluations] | None = None
        """The evaluations, of the policy that was created then."""

    @cached_property
    def tasks(self) -> frozenset[str]:
        """What the scenarios ask, so that no run that asks the same is trained on."""
        return frozenset(map(input_id, self._held_out.resolve_scenarios([]) if self._held_out else []))

    @property
    def missing(self) -> str | None:
        """Why candidates are not measured; None: they are."""
        if self._held_out is None:
            return "there is no gate (--gate)"
        needs = {"a graph (--graph-object)": self._graph, "a reward function (--reward)": self._held_out.reward}
        missing = [name for name, value in needs.items() if value is None]
        return f"the gate's scenarios need {' and '.join(missing)} to be run" if missing else None

    async def evaluation(self, policy: Policy, version: int) -> Evaluation:
        """The evaluation of a version: that which was made before, or else a new one.

        Raises:
            RolloutsFailed, PinIgnored: As `evaluate`.
        """
        return await (await self._evaluations(policy)).of(version)

    async def find_evaluation(self, policy: Policy, version: int) -> Evaluation | None:
        """The evaluation of a version, if there is one."""
        return None if self.missing else await (await self._evaluations(policy)).find_evaluation(version)

    async def _evaluations(self, policy: Policy) -> Evaluations:
        assert self._held_out is not None
        if self._last is None or self._last[0] != policy.created:
            graph: Any = self._graph
            evaluations = await asyncio.to_thread(  # it reads the store
                Evaluations,
                partial(evaluate, graph, store=self._store),
                policy,
                self._held_out,
                store=self._store,
                run=self._run,
                resumed=True,
                progress=False,
            )
            self._last = policy.created, evaluations
        return self._last[1]
