"""What the processes of a rollout and of its remote graphs send each other: the rollout there, the records back.

The rollout is handed over by the metadata of the run's config.

A `RemoteGraph` sends the metadata. The capture of the other process (`install`, `art_langgraph.dev`) takes the
rollout up, so that its models ask for the same version at the same temperature, and sends the records of its runs to
the trainer server, where the rollout fetches them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from art_langgraph.capture.scope import Scope
from art_langgraph.trajectory import Trajectory
from trainer_server.wire import ROLLOUT_PATTERN, VersionRef

log = logging.getLogger("art_langgraph")

KEY = "art_rollout"
"""The metadata's key. Its value is JSON, because not every part on the way keeps nested metadata."""
_Id = Annotated[str, Field(pattern=ROLLOUT_PATTERN)]


class Handover(BaseModel):
    """A rollout, as the other process needs it. Each field is checked: anyone who may set a run's metadata may write
    it."""

    id: _Id
    call: _Id | None = None
    """Id of the call of a remote graph, under which the record of its run is sent home. None: nobody waits for it."""
    scenario: str | None = None
    """Id of the scenario. A checkpointer keeps it with the thread, so that a run that resumes the thread has it too."""
    temperature: float | None = None
    version: int | dict[str, VersionRef] | None = None
    evaluation: bool = False


def handover_metadata(
    scope: Scope, scenario_id: str | None, *, evaluation: bool, call: str | None = None
) -> dict[str, str]:
    """A rollout as metadata of a config.

    Args:
        scope: The rollout.
        scenario_id: Of its scenario. None: unknown.
        evaluation: Whether the run evaluates a version. Such a run is never trained on.
        call: Id of the call of a remote graph; None: all its calls.
    """
    version = dict(scope.version) if isinstance(scope.version, Mapping) else scope.version
    handover = Handover(
        id=scope.rollout_id,
        call=call,
        scenario=scenario_id,
        temperature=scope.temperature,
        version=version,
        evaluation=evaluation,
    )
    return {KEY: handover.model_dump_json(exclude_defaults=True)}


def read_handover(metadata: Mapping[str, Any]) -> Handover | None:
    """The handover in the metadata of a config, of a run or of a checkpoint; None where no rollout wrote it."""
    try:
        return Handover.model_validate_json(metadata[KEY])
    except (KeyError, ValidationError):
        return None


def scenario_of(metadata: Mapping[str, Any]) -> str | None:
    """Id of the scenario of the rollout that wrote a checkpoint's metadata; None where no rollout did."""
    handover = read_handover(metadata)
    return handover.scenario if handover else None


def take_up_rollout(metadata: Mapping[str, Any]) -> tuple[Scope, dict[str, Any]]:
    """The rollout that a run belongs to.

    Args:
        metadata: Of the run.

    Returns:
        The scope, and what the run's `Trajectory` has to say of it, the scenario by its id; a new scope where nothing
        was handed over.
    """
    if KEY not in metadata:
        return Scope(), {}
    try:
        handover = Handover.model_validate_json(metadata[KEY])
    except ValidationError as error:
        log.warning("the metadata %r of a run is no rollout, and is not taken up: %s", KEY, error)
        return Scope(), {}
    temperature, version = handover.temperature, handover.version
    facts = {"temperature": temperature, "requested_version": version, "evaluation": handover.evaluation}
    scope = Scope(rollout_id=handover.id, temperature=temperature, version=version, call=handover.call)
    return scope, {"scenario": handover.scenario, **facts}


class RemoteRecord(BaseModel):
    """A run of a remote graph."""

    trajectory: Trajectory
    """The run, without input and output, which the caller has."""
    marked: int = 0
    """How many of its requests to a trainer server carried the rollout's id."""

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
