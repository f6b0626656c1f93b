"""Which trajectories to read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from art_langgraph.store.database import Database, json_array, storable
from art_langgraph.trajectory import Trajectory

FIRST = "id NOT IN (SELECT trajectory FROM resumed)"
"""Holds for the runs that are read: not for those that resumed another run, and are read with it."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which trajectories to read. None in a field does not restrict."""

    scenario: str | Collection[str] | None = None
    """Id of the scenario, or ids of several."""
    graph: str | None = None
    """Name of the graph."""
    thread: str | None = None
    """Id of LangGraph's thread."""
    run: str | None = None
    """Id of LangGraph's run."""
    since: float | None = None
    """Earliest start, as Unix time."""
    until: float | None = None
    """Starts before this Unix time."""
    min_reward: float | None = None
    """Least reward; runs without a reward are left out."""
    max_reward: float | None = None
    """Greatest reward; runs without a reward are left out."""
    error: bool | None = None
    """True: only runs that raised. False: only runs that did not."""

    def condition(self, database: Database) -> tuple[str, list[str | float]]:
        """What SQL checks: all fields but error and reward, which may become known after the run.

        Returns:
            The condition, and its values.
        """
        clauses = [FIRST]
        values: list[str | float] = []
        if self.scenario is not None:
            clauses.append(f"scenario IN {database.texts('?')}")
            values.append(json_array([self.scenario] if isinstance(self.scenario, str) else self.scenario))
        for column, value in (("graph", self.graph), ("thread", self.thread)):
            if value is not None:
                clauses.append(f"{column} = ?")
                values.append(storable(value))
        if self.run is not None:
            resuming = "SELECT first FROM resumed JOIN trajectories ON id = trajectory WHERE run = ?"
            clauses.append(f"(run = ? OR id IN ({resuming}))")
            values += [storable(self.run)] * 2
        for bound, sign in ((self.since, ">="), (self.until, "<")):
            if bound is not None:
                clauses.append(f"started {sign} ?")
                values.append(bound)
        return " AND ".join(clauses), values

    @property
    def admits_all(self) -> bool:
        """Whether SQL checks all that is restricted."""
        return self.error is None and self.min_reward is None and self.max_reward is None

    def admits(self, trajectory: Trajectory) -> bool:
        """Whether error and reward are as wanted."""
        if self.error is not None and self.error != (trajectory.error is not None):
            return False
        if self.min_reward is not None and (trajectory.reward is None or trajectory.reward < self.min_reward):
            return False
        return self.max_reward is None or (trajectory.reward is not None and trajectory.reward <= self.max_reward)
