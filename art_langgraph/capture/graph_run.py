"""The facts of a graph's run as a whole: which graph, on which input, with which result."""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections.abc import Mapping
from typing import Any, Literal
from uuid import UUID

from langgraph.types import Command

from art_langgraph.capture.handover import KEY
from art_langgraph.capture.scope import Scope
from art_langgraph.messages import plain
from art_langgraph.rewards import RewardFunction, score
from art_langgraph.trajectory import Scenario, Trajectory
from trainer_server.wire import ConfigError

_IDENTITY = ("graph_id", "assistant_id", "thread_id", "run_id")
"""Ids that a LangGraph server puts into a run's metadata."""
_PLATFORM = re.compile(r"langgraph_\w+|ls_integration|created_by|run_attempt")
"""What else a LangGraph server and LangGraph itself put there."""


class GraphRun:
    """The run of a graph, and its resumption where an interrupt is answered.

    Args:
        scope: What belongs to the run.
    """

    def __init__(self, scope: Scope) -> None:
        self.root: UUID | None = None
        self._scope = scope
        self._header = Trajectory(scenario=Scenario(input=None), rollout_id=scope.rollout_id)
        self._roots: set[UUID] = set()
        self._lock = threading.Lock()
        self._start = time.monotonic()

    def note_start(
        self,
        run_id: UUID,
        inputs: Any,
        name: str | None,
        metadata: Mapping[str, Any],
        *,
        scenario: str | None = None,
        **facts: Any,
    ) -> None:
        """Notes that a run has begun which nothing encloses.

        Args:
            run_id: LangChain's id of the run.
            inputs: What the graph was invoked with.
            name: Name of the run.
            metadata: Of the run.
            scenario: Id of its scenario, where a rollout of another process has one; None: by the input.
            facts: Other fields of its trajectory, from such a rollout.
        """
        with self._lock:
            first = self.root is None
            self.root = self.root or run_id
            self._roots.add(run_id)
        if first:
            self._start = time.monotonic()
            update = {**_facts_of(run_id, inputs, name, metadata, scenario), **facts, "started": time.time()}
            self._header = self._header.model_copy(update=update)

    def note_end(self, run_id: UUID, output: Any, error: str | None) -> bool:
        """Notes that a run has ended.

        Args:
            run_id: Its id.
            output: What it returned; None where it raised.
            error: What it raised, as text; None where it returned.

        Returns:
            Whether nothing encloses the run; only such runs matter here.
        """
        if run_id not in self._roots:
            return False
        seconds = time.monotonic() - self._start
        self._header = self._header.model_copy(update={"output": output, "error": error, "seconds": seconds})
        return True

    def trajectory(
        self, scenario: Scenario | Any, reward: float | Mapping[str, float] | RewardFunction | None, output: Any
    ) -> Trajectory:
        """The run as a trajectory: the facts of the graph, and what the recorder has.

        Args:
            scenario: The task; None: the graph's input.
            reward: The reward, its named parts, or a function that gives them; None: not scored.
            output: The graph's final state; None: what the run returned.

        Raises:
            ConfigError: The reward function is async.
        """
        recorder = self._scope.recorder
        update: dict[str, Any] = {
            "completions": recorder.completions,
            "tool_calls": recorder.tool_calls,
            "nodes": recorder.nodes,
            "metrics": {},
        }
        if scenario is not None:
            update["scenario"] = Scenario.of(scenario)
        if output is not None:
            update["output"] = output
        trajectory = self._header.model_copy(update=update)
        if reward is not None:
            _score(trajectory, reward if callable(reward) else lambda _: reward)
        return trajectory


def _facts_of(
    run_id: UUID, inputs: Any, name: str | None, metadata: Mapping[str, Any], scenario: str | None
) -> dict[str, Any]:
    """The facts of a root run, as fields of a `Trajectory`.

    Args:
        run_id: LangChain's id of the run; a LangGraph server's own takes its place.
        inputs: What the graph was invoked with.
        name: Name of the run: the graph's, unless a LangGraph server knows a better one.
        metadata: Of the run. What is no identity is the user's.
        scenario: Id of its scenario, where it is known. A run that goes on with its thread has the thread's.
    """
    identity = {"graph_id": name, "run_id": run_id, **metadata}
    resumes = resumed_state(inputs, metadata)
    return {
        **{key: str(identity[key]) for key in _IDENTITY if identity.get(key) is not None},
        "metadata": {
            key: plain(value)
            for key, value in metadata.items()
            if key not in (*_IDENTITY, KEY) and not _PLATFORM.fullmatch(key)
        },
        "resumes": resumes,
        "scenario": Scenario(input=plain(inputs), id=f"thread-{metadata['thread_id']}" if resumes else scenario or ""),
    }


def resumed_state(inputs: Any, facts: Mapping[str, Any]) -> Literal["newest", "checkpoint"] | None:
    """Which state of its thread a run goes on from, where it has no input of its own; None where it has.

    Args:
        inputs: What the graph was invoked with.
        facts: `thread_id` and `checkpoint_id` of the run, in its metadata or its config.
    """
    has_input = inputs is not None and not (isinstance(inputs, Command) and inputs.resume is not None)
    if has_input or facts.get("thread_id") is None:
        return None
    return "checkpoint" if facts.get("checkpoint_id") else "newest"


def error_text(error: BaseException) -> str:
    """An error as text for a record."""
    text = "the stream of the run was left before the run ended" if isinstance(error, GeneratorExit) else error
    return f"{type(error).__name__}: {text}"


def _score(trajectory: Trajectory, reward: RewardFunction) -> None:
    """Scores without an event loop. Raises ConfigError for an async function, which is not called if it says so."""
    if inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(type(reward).__call__):
        raise _async(reward)
    scoring = score(trajectory, reward)
    try:
        scoring.send(None)
    except StopIteration:
        return
    scoring.close()
    raise _async(reward)


def _async(reward: RewardFunction) -> ConfigError:
    return ConfigError(f"the reward function {reward!r} is async: await it, and pass its result as `reward`")
