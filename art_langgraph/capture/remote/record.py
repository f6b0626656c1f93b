"""What the process of a remote graph sends home of a run."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from art_langgraph.trajectory import Trajectory


class RemoteRecord(BaseModel):
    """A run of a remote graph."""

    trajectory: Trajectory
    """The run, without input and output, which the caller has."""
    marked: int = 0
    """How many of its requests to a trainer server said that they belong to the rollout."""

    @classmethod
    def of(cls, trajectory: Trajectory, mark_count: int) -> RemoteRecord:
        """The record of a run that has ended."""
        scenario = trajectory.scenario.model_copy(update={"input": None, "metadata": {}})
        update: dict[str, Any] = {"scenario": scenario, "output": None, "metadata": {}}
        return cls(trajectory=trajectory.model_copy(update=update), marked=mark_count)


class RemoteRecords(BaseModel):
    """What the trainer server has of the runs that answered one call of a remote graph."""

    ended: bool = False
    """Whether all runs that have begun have ended."""
    records: list[RemoteRecord] = Field(default_factory=list)
    """The runs that have ended, in the order in which they began."""
