"""Demonstrations for a warm start: conversations from files, and completions of recorded runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from art_langgraph.credit import group_refs
from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError, Conversation, SFTConfig, SFTRequest, TrajectoryRef
from trainer_server.wire.jsonl import explain, read_jsonl

Demonstration = Conversation | Mapping[str, Any] | Trajectory | TrajectoryGroup
"""A conversation, as a dict `{"messages": […], "tools": […]}` or a `Conversation`; or runs, whose completions are
imitated."""


def load_conversations(path: str | Path) -> list[Conversation]:
    """Reads conversations from a JSONL file in OpenAI's fine-tuning format, with a conversation in each line.

    Args:
        path: The file.

    Raises:
        ConfigError: The file cannot be read or is empty, or a line is no conversation; the message names the line.
    """
    conversations = list(read_jsonl(path, Conversation.model_validate, what="conversation"))
    if not conversations:
        raise ConfigError(f"{path} has no conversations: expected one a line, as {{'messages': […], 'tools': […]}}")
    return conversations


def sft_request(
    demonstrations: str | Path | Iterable[Demonstration],
    config: SFTConfig | None = None,
    *,
    nodes: Sequence[str] | None = None,
    idempotency_key: str | None = None,
) -> SFTRequest:
    """The request of a warm start. Of runs it has what a training step takes: no evaluations, no superseded attempts.

    Args:
        demonstrations: As those of `TrainerClient.sft`.
        config: As that of `TrainerClient.sft`.
        nodes: Patterns of the node paths whose completions are imitated; None: all.
        idempotency_key: As that of `TrainerClient.submit`.

    Raises:
        ConfigError: A demonstration is no conversation, or there are none, or `nodes` is given with conversations.
    """
    if isinstance(demonstrations, (str, Path)):
        demonstrations = load_conversations(demonstrations)
    conversations: list[Conversation] = []
    trajectories: list[TrajectoryRef] = []
    for number, demonstration in enumerate(demonstrations):
        if isinstance(demonstration, Conversation):
            conversations.append(demonstration)
        elif isinstance(demonstration, (Trajectory, TrajectoryGroup)):
            group = demonstration
            if isinstance(group, Trajectory):
                group = TrajectoryGroup(scenario=group.scenario, trajectories=[group])
            if imported := next((run for run in group.trajectories if run.imported), None):
                raise ConfigError(
                    f"{imported.id} was imported from {imported.imported}: the tokens of its answers are not known. "
                    "Imitate the file of demonstrations that the import wrote (--demonstrations)"
                )
            trajectories += [ref for refs in group_refs([group], nodes=nodes) for ref in refs.trajectories]
        else:
            try:
                conversations.append(Conversation.model_validate(demonstration))
            except ValidationError as error:
                raise ConfigError(f"demonstration {number} (counted from 0): {explain(error)}") from None
    if not conversations and not trajectories:
        raise ConfigError("there is nothing to imitate: the demonstrations are empty")
    if conversations and nodes is not None:
        raise ConfigError(
            f"nodes={list(nodes)!r} chooses completions of recorded runs by their node; {len(conversations)} of the "
            "demonstrations are conversations, which have no nodes: leave nodes= out, or pass trajectories"
        )
    return SFTRequest(
        conversations=conversations,
        trajectories=trajectories,
        config=config or SFTConfig(),
        idempotency_key=idempotency_key,
    )
