"""Hands a rollout over to the process that runs a remote graph: by the metadata of the run's config.

A `RemoteGraph` sends the metadata along. The capture of the other process (`install`, `art_langgraph.dev`) takes the
rollout up, so that its models ask for the same version at the same temperature.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from art_langgraph.capture.scope import Scope
from trainer_server.wire import ROLLOUT_PATTERN, VersionRef

log = logging.getLogger("art_langgraph")

KEY = "art_rollout"
"""The metadata's key. Its value is JSON, because not every part on the way keeps nested metadata."""
_Id = Annotated[str, Field(pattern=ROLLOUT_PATTERN)]


class Handover(BaseModel):
    """What the other process has to know of a rollout. Whoever may set the metadata of a run may have written it."""

    id: _Id
    call: _Id | None = None
    """Id of the call of a remote graph, under which the record of its run is sent home. None: nobody waits for it."""
    scenario: str | None = None
    """Id of the scenario. A checkpointer keeps it with the thread, so that a run that resumes the thread has it too."""
    temperature: float | None = None
    version: int | dict[str, VersionRef] | None = None
    evaluation: bool = False


def handed_over(scope: Scope, scenario_id: str | None, *, evaluation: bool) -> dict[str, str]:
    """A rollout as metadata of a config.

    Args:
        scope: The rollout.
        scenario_id: Of its scenario. None: unknown.
        evaluation: Whether the run evaluates a version. Such a run is never trained on.
    """
    version = dict(scope.version) if isinstance(scope.version, Mapping) else scope.version
    sent = Handover(
        id=scope.rollout_id,
        scenario=scenario_id,
        temperature=scope.temperature,
        version=version,
        evaluation=evaluation,
    )
    return {KEY: sent.model_dump_json(exclude_defaults=True)}


def for_call(metadata: Mapping[str, Any], call: str) -> dict[str, str]:
    """The handover in the metadata of a config, for one call of a remote graph; empty where there is none.

    Args:
        metadata: Has what `handed_over` gave.
        call: Id of the call.
    """
    try:
        sent = Handover.model_validate_json(metadata[KEY])
    except (KeyError, ValidationError):
        return {}
    return {KEY: sent.model_copy(update={"call": call}).model_dump_json(exclude_defaults=True)}


def scenario_of(metadata: Mapping[str, Any]) -> str | None:
    """Id of the scenario of the rollout that wrote a checkpoint's metadata; None where no rollout did."""
    try:
        return Handover.model_validate_json(metadata[KEY]).scenario
    except (KeyError, ValidationError):
        return None


def taken_up(metadata: Mapping[str, Any]) -> tuple[Scope, dict[str, Any]]:
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
        sent = Handover.model_validate_json(metadata[KEY])
    except ValidationError as error:
        log.warning("the metadata %r of a run is no rollout, and is not taken up: %s", KEY, error)
        return Scope(), {}
    scope = Scope(rollout_id=sent.id, temperature=sent.temperature, version=sent.version, call=sent.call)
    return scope, {
        "scenario": sent.scenario,
        "temperature": sent.temperature,
        "requested_version": sent.version,
        "evaluation": sent.evaluation,
    }
