"""Demonstrations for a warm start: conversations from files, and completions of recorded runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from art_langgraph.credit import group_refs
from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError, Conversation, SFTConfig, SFTRequest, TrajectoryRef

Demonstration = Conversation | Mapping[str, Any] | Trajectory | TrajectoryGroup
"""A conversation, as `{"messages": […], "tools": […]}` or checked already; or a run, whose completions are imitated."""


def load_conversations(path: str | Path) -> list[Conversation]:
    """Conversations from a JSONL file in OpenAI's fine-tuning format, one a line. Raises ConfigError with the line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(Conversation.model_validate(json.loads(line)))
            except ValidationError as error:
                raise ConfigError(f"{path}, line {number}: {_first(error)}") from None
            except ValueError as error:
                raise ConfigError(f"{path}, line {number} is not JSON: {error}") from None
    if not found:
        raise ConfigError(f"{path} has no conversations: expected one a line, as {{'messages': […], 'tools': […]}}")
    return found


def sft_request(
    demonstrations: str | Path | Iterable[Demonstration],
    config: SFTConfig | None = None,
    *,
    nodes: Sequence[str] | None = None,
    idempotency_key: str | None = None,
) -> SFTRequest:
    """What a warm start sends. Of runs, what a training step would take: no evaluations, no superseded attempts.

    nodes: patterns of the node paths whose completions are imitated; None: all. Raises ConfigError.
    """
    if isinstance(demonstrations, (str, Path)):
        demonstrations = load_conversations(demonstrations)
    conversations: list[Conversation] = []
    trajectories: list[TrajectoryRef] = []
    for number, one in enumerate(demonstrations):
        if isinstance(one, Conversation):
            conversations.append(one)
        elif isinstance(one, (Trajectory, TrajectoryGroup)):
            group = TrajectoryGroup(scenario=one.scenario, trajectories=[one]) if isinstance(one, Trajectory) else one
            trajectories += [ref for refs in group_refs([group], nodes=nodes) for ref in refs.trajectories]
        else:
            try:
                conversations.append(Conversation.model_validate(one))
            except ValidationError as error:
                raise ConfigError(f"demonstration {number} (counted from 0): {_first(error)}") from None
    if not conversations and not trajectories:
        raise ConfigError("there is nothing to imitate: the demonstrations are empty")
    return SFTRequest(
        conversations=conversations, trajectories=trajectories, config=config or SFTConfig(),
        idempotency_key=idempotency_key,
    )  # fmt: skip


def _first(error: ValidationError) -> str:
    found = error.errors()[0]
    where = ".".join(str(part) for part in found["loc"])
    message = found["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
