"""Demonstrations for a warm start: conversations from files, and completions of recorded runs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from pydantic import ValidationError

from art_langgraph.credit import group_refs
from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from trainer_server.common.jsonl import explain, read_jsonl
from trainer_server.common.options import nearest
from trainer_server.wire import ConfigError, Conversation, SFTConfig, SFTRequest, TrajectoryRef

Demonstration = Conversation | Mapping[str, Any] | Trajectory | TrajectoryGroup
"""A conversation, as a dict `{"messages": […], "tools": […]}` or a `Conversation`; or runs, whose completions are
imitated."""
Demonstrations = str | Path | Iterable[Demonstration]
"""Demonstrations, or the JSONL file of conversations that has them."""


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


_WAITS = ("timeout", "progress")
"""Keywords of the calls that wait for a step or a warm start, besides its options."""


class SFTOptions(TypedDict, total=False):
    """Keywords of `sft_request` and `TrainerClient.sft`.

    Attributes:
        validation: Demonstrations to measure, in any form that is imitated; or the share of the demonstrations to set
            aside for it, drawn by `config.seed`, such as 0.1. None: nothing is measured, and the last weights are kept.
        nodes: Patterns of the node paths whose completions are imitated; None: all.
        idempotency_key: Name of the warm start, which the server takes once, however often it is sent. None: `sft`
            makes one.
        time_limit: Seconds that the trainer may take; a warm start that takes longer fails. None: the server's limit.
    """

    validation: Demonstrations | float | None
    nodes: Sequence[str] | None
    idempotency_key: str | None
    time_limit: float | None


def sft_request(
    demonstrations: Demonstrations, config: SFTConfig | None = None, **options: Unpack[SFTOptions]
) -> SFTRequest:
    """The request of a warm start. Of runs it has what a training step takes: no evaluations, no superseded attempts.

    Args:
        demonstrations: What to imitate: a JSONL file of conversations, or conversations and recorded runs.
        config: Learning rate, epochs and other settings of the warm start; None: the defaults.
        options: Fields of `SFTOptions`.

    Raises:
        ConfigError: A demonstration is no conversation, or there are none, or `nodes` is given with conversations, or
            `validation` leaves nothing to imitate or to measure.
    """
    check_keywords(options, SFTOptions)
    validation, nodes = options.get("validation"), options.get("nodes")
    config = config or SFTConfig()
    training_set, held_out_set = _read(demonstrations), list[Demonstration]()
    if isinstance(validation, (int, float)):
        training_set, held_out_set = divide(training_set, validation, seed=config.seed)
    elif validation is not None:
        held_out_set = _read(validation)
        if not held_out_set:
            raise ConfigError("validation is empty: give demonstrations to measure, or leave validation= out")
    conversations, trajectories = _of_kinds(training_set, "demonstration", nodes)
    held_out, held_out_trajectories = _of_kinds(held_out_set, "demonstration of the validation", nodes)
    if not conversations and not trajectories:
        raise ConfigError("there is nothing to imitate: the demonstrations are empty")
    if (conversations or held_out) and nodes is not None:
        raise ConfigError(
            f"nodes={list(nodes)!r} chooses completions of recorded runs by their node; "
            f"{len(conversations) + len(held_out)} of the demonstrations are conversations, which have no nodes: leave "
            "nodes= out, or pass trajectories"
        )
    tools = [conversation.tools for conversation in (*conversations, *held_out)]
    common = tools[0] if tools and all(each == tools[0] for each in tools) else None
    if common is not None:  # sent once: a thousand copies of a large server's tools would be too much for a request
        conversations, held_out = (
            [conversation.model_copy(update={"tools": None}) for conversation in each]
            for each in (conversations, held_out)
        )
    return SFTRequest(
        conversations=conversations,
        tools=common,
        trajectories=trajectories,
        validation=held_out,
        validation_trajectories=held_out_trajectories,
        config=config,
        idempotency_key=options.get("idempotency_key"),
        time_limit=options.get("time_limit"),
    )


def check_keywords(keywords: Mapping[str, Any], options: type) -> None:
    """Raises TypeError for keywords that are none of the fields of a TypedDict: type checkers refuse them too."""
    fields = options.__annotations__
    for name in keywords.keys() - fields.keys():
        raise TypeError(f"unexpected keyword argument {name!r}{nearest(name, {*fields, *_WAITS} - {name})}")


def divide(
    demonstrations: Sequence[Demonstration], share: float, *, seed: int
) -> tuple[list[Demonstration], list[Demonstration]]:
    """Divides demonstrations into those that are imitated and those that are measured. A group of runs stays whole.

    Args:
        demonstrations: All of them.
        share: Of them that is measured, between 0 and 1; one demonstration at least.
        seed: The same seed draws the same demonstrations.

    Returns:
        What is imitated, and what is measured, each in the order that it came in.

    Raises:
        ConfigError: The share is not between 0 and 1, or leaves nothing to imitate.
    """
    if not 0 < share < 1:
        raise ConfigError(f"validation={share:g}: as a share it must be between 0 and 1, such as 0.1 for a tenth")
    count = max(1, round(share * len(demonstrations)))
    if count >= len(demonstrations):
        raise ConfigError(
            f"validation={share:g} would measure all of the {len(demonstrations)} demonstrations and imitate none: "
            "give a smaller share, or more demonstrations"
        )
    sample = set(random.Random(seed).sample(range(len(demonstrations)), count))
    return (
        [demonstration for at, demonstration in enumerate(demonstrations) if at not in sample],
        [demonstration for at, demonstration in enumerate(demonstrations) if at in sample],
    )


def _read(demonstrations: Demonstrations) -> list[Demonstration]:
    if isinstance(demonstrations, (str, Path)):
        return [*load_conversations(demonstrations)]
    return list(demonstrations)


def _of_kinds(
    demonstrations: Iterable[Demonstration], what: str, nodes: Sequence[str] | None
) -> tuple[list[Conversation], list[TrajectoryRef]]:
    """The conversations and the runs among demonstrations. what: How messages call one of them."""
    conversations: list[Conversation] = []
    trajectories: list[TrajectoryRef] = []
    for number, demonstration in enumerate(demonstrations):
        if isinstance(demonstration, Conversation):
            conversations.append(demonstration)
        elif isinstance(demonstration, (Trajectory, TrajectoryGroup)):
            group = demonstration
            if isinstance(group, Trajectory):
                group = TrajectoryGroup(scenario=group.scenario, trajectories=[group])
            if foreign := next((run for run in group.trajectories if run.imported), None):
                raise ConfigError(
                    f"{foreign.id} was imported from {foreign.imported}: the tokens of its answers are not known. "
                    "Imitate the file of demonstrations that the import wrote (--demonstrations)"
                )
            trajectories += [ref for refs in group_refs([group], nodes=nodes) for ref in refs.trajectories]
        else:
            try:
                conversations.append(Conversation.model_validate(demonstration))
            except ValidationError as error:
                raise ConfigError(f"{what} {number} (counted from 0): {explain(error)}") from None
    return conversations, trajectories
