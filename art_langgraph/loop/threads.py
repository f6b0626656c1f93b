"""The thread of a graph's run: which it is, where a run of it stopped, and which scenario it belongs to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast
from uuid import UUID

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME
from langgraph.types import Command

from art_langgraph.capture.handover import scenario_of
from art_langgraph.capture.remote.calls import is_remote
from art_langgraph.loop.executors.base import Question
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, scenario_id
from trainer_server.wire import ConfigError

_ID = re.compile(r"[0-9a-f]{32}")
"""An interrupt's id, as LangGraph makes it. It takes a dict of such keys for answers by id."""

_SAME = 3
"""How often several interrupts may ask the same at the same checkpoint, after the first time."""


def own_thread(
    config: RunnableConfig | None, graph: Runnable[Any, Any], rollout_id: str, *, resumed: bool = False
) -> RunnableConfig:
    """Adds a new thread to a config that names no thread, where the graph has a checkpointer.

    Args:
        config: Of the run.
        graph: The graph that runs. A remote graph gets a thread only if the rollout resumes it: its server keeps
            threads for ever, and runs without a thread leave nothing behind.
        rollout_id: Names the thread; that of a LangGraph server is a UUID of the same digits.
        resumed: Whether the rollout answers interrupts.
    """
    whole: dict[str, Any] = dict(config or {})
    thread = rollout_id if getattr(graph, "checkpointer", None) else None
    if resumed and is_remote(graph):
        thread = str(UUID(rollout_id.removeprefix("ro-")))
    if thread:
        whole["configurable"] = {"thread_id": thread, **(whole.get("configurable") or {})}
    return cast(RunnableConfig, whole)


def thread_of(config: RunnableConfig | None) -> str | None:
    """The thread that a config names."""
    thread = configurable(config).get("thread_id")
    return None if thread is None else str(thread)


def check_thread(config: RunnableConfig | None, *, runs: int, name: str = "config") -> None:
    """Raises ConfigError where a config would put several runs on one thread.

    Args:
        config: Of all these runs.
        runs: How many there are.
        name: Of the argument that has the config.
    """
    if runs > 1 and (thread := thread_of(config)) is not None:
        raise ConfigError(
            f"{name} names the thread {thread!r}, which {runs} runs would share, with all that the others left there: "
            "leave thread_id out, and each run gets a thread of its own"
        )


def configurable(config: RunnableConfig | None) -> dict[str, Any]:
    """What a config says of thread and checkpoint."""
    return (config or {}).get("configurable") or {}


def newest(config: RunnableConfig) -> RunnableConfig:
    """A config that means the newest state of its thread, not a checkpoint."""
    rest = {key: value for key, value in configurable(config).items() if key not in ("checkpoint_id", "checkpoint_map")}
    return cast(RunnableConfig, {**config, "configurable": rest})


async def questions(graph: Runnable[Any, Any], output: Any, config: RunnableConfig) -> list[Question] | None:
    """What a run stopped at.

    Args:
        graph: The graph that ran.
        output: What the run returned.
        config: Of the thread, in its newest state.

    Returns:
        The questions of the interrupts that wait; none at a breakpoint (`interrupt_before`, `interrupt_after`), which
        asks nothing; None when the run has ended.
    """
    if isinstance(output, dict) and (interrupts := output.get("__interrupt__")):
        return _questions(interrupts)
    if not is_remote(graph) and not getattr(graph, "checkpointer", None):
        return None
    state = await cast(Any, graph).aget_state(config)
    return _questions(state.interrupts) if state.next else None  # outputs of remote graphs do not have them


async def waiting(graph: Runnable[Any, Any], config: RunnableConfig) -> int:
    """How many interrupts wait. Of the tasks of a function that ask at once, LangGraph shows one, and takes answers by
    id alone then, because it knows of all of them.

    Args:
        graph: The graph that ran. What waits on another server is not known: 0.
        config: Of the thread, in its newest state.
    """
    saver = getattr(graph, "checkpointer", None)
    if is_remote(graph) or not isinstance(saver, BaseCheckpointSaver):
        return 0
    checkpoint = await saver.aget_tuple({"configurable": {"checkpoint_ns": "", **configurable(config)}})
    writes = checkpoint.pending_writes or () if checkpoint else ()
    finished_tasks = {task for task, channel, _ in writes if channel not in (INTERRUPT, RESUME)}
    ids = {
        each.id
        for task, channel, value in writes
        if channel == INTERRUPT and task not in finished_tasks
        for each in value
    }
    return len(ids)


def command(open_questions: Sequence[Question], answers: Sequence[Any], *, by_ids: bool = False) -> Command[Any] | None:
    """The input that goes on with a run; None at a breakpoint.

    Args:
        open_questions: The questions of all interrupts that wait.
        answers: The answer to each.
        by_ids: Whether even a single answer names its interrupt. Interrupts of subgraphs that keep no checkpoints
            (`checkpointer=False`) get other ids when they go on, and are answered without.

    Raises:
        ConfigError: Several interrupts wait, and have no ids to tell them apart.
    """
    if not open_questions:
        return None
    by_id = {str(question.id): answer for question, answer in zip(open_questions, answers, strict=True)}
    if len(open_questions) > 1:
        if not all(_ID.fullmatch(id) for id in by_id) or len(by_id) < len(open_questions):
            raise ConfigError(
                f"{len(open_questions)} interrupts wait, with the ids {', '.join(by_id)}, by which LangGraph cannot "
                "tell them apart: leave the ids of `interrupt` as they are, or let the graph ask one after the other"
            )
        return Command(resume=by_id)
    (answer,) = answers
    # LangGraph takes neither None for an answer, nor a dict whose keys are all ids, such as {}.
    ambiguous = (
        by_ids or answer is None or (isinstance(answer, dict) and all(_ID.fullmatch(str(key)) for key in answer))
    )
    return Command(resume=by_id if ambiguous and _ID.fullmatch(str(open_questions[0].id)) else answer)


async def check_progress(graph: Runnable[Any, Any], config: RunnableConfig, before: list[Any], number: int) -> None:
    """Raises ConfigError where several answers do not reach their interrupts, which would be asked for ever.

    Args:
        graph: The graph, which waits for several answers.
        config: Of the thread, in its newest state.
        before: Where the run stopped before. The place where it stops now is added.
        number: As `waiting` counts.
    """
    state = await cast(Any, graph).aget_state(config)
    values = [question.value for question in state.interrupts]
    before.append((configurable(state.config).get("checkpoint_id"), values, number))
    if len(before) > _SAME and all(earlier == before[-1] for earlier in before[-1 - _SAME :]):
        raise ConfigError(
            f"the interrupts {before[-1][1]!r:.200} ask again however often they are answered: the subgraphs that they "
            "are in keep no checkpoints (`checkpointer=False`), and begin anew with other ids. Leave that out"
        )


def _questions(interrupts: Iterable[Any]) -> list[Question]:
    """The questions of interrupts, each once. Those of a remote graph may be plain data."""
    questions: dict[Any, Question] = {}
    for number, interrupt in enumerate(interrupts):
        plain = isinstance(interrupt, dict)
        id = (interrupt.get("id") or interrupt.get("interrupt_id")) if plain else interrupt.id
        questions.setdefault(id or number, Question(interrupt["value"] if plain else interrupt.value, id))
    return list(questions.values())


async def thread_scenario(
    own_scenario: Scenario, graph: Runnable[Any, Any], config: RunnableConfig, store: TrajectoryStore | None
) -> Scenario:
    """The scenario of a run that has no input of its own: that of its thread.

    Args:
        own_scenario: The scenario that the run was given. One with an id of its own is kept.
        graph: The graph that runs.
        config: Names the thread that goes on.
        store: Has the thread's earlier runs, if they were stored; None: what the checkpointer has is looked at.
    """
    if own_scenario.id != scenario_id(own_scenario.input, own_scenario.metadata):
        return own_scenario
    thread = thread_of(config)
    if store is not None and (earlier := await asyncio.to_thread(store.list, thread=thread, limit=1)):
        return earlier[0].scenario
    if is_remote(graph):
        first_input, scenario = await _newest_remote_input(graph, config)
    else:
        first_input, scenario = await _newest_input(getattr(graph, "checkpointer", None), thread)
    if first_input is not None or scenario is not None:
        return Scenario(id=scenario or "", input=first_input, metadata=own_scenario.metadata)
    return Scenario(id=f"thread-{thread}", input=own_scenario.input, metadata=own_scenario.metadata)


async def _newest_remote_input(graph: Any, config: RunnableConfig) -> tuple[Any, str | None]:
    """The same as `_newest_input`, for a thread of a LangGraph server."""
    async for state in graph.aget_state_history(newest(config), filter={"source": "input"}, limit=1):
        first_input = next((task.result for task in state.tasks if task.name == "__start__"), None)
        return first_input, scenario_of(state.metadata or {})
    return None, None


async def _newest_input(saver: Any, thread: str | None) -> tuple[Any, str | None]:
    """The newest input that a checkpointer has of a thread, and the id of its scenario; None for what it does not
    know."""
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    if saver is None:  # the run will say that it has none
        return None, None
    async for checkpoint in saver.alist(config, filter={"source": "input"}, limit=1):
        return checkpoint.checkpoint["channel_values"].get("__start__"), scenario_of(checkpoint.metadata)
    return None, None
