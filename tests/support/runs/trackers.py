"""Trackers that nobody of the project wrote: they remember, raise or hang. And a run to track."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from art_langgraph import Scenario, Trajectory
from art_langgraph.trajectory import CompletionCall, NodeRun, ToolCall
from tests.support.patience import PATIENCE
from trainer_server.tracking import TrackedRun


class Remembering:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.ended = threading.Event()

    def start(self, run: TrackedRun) -> None:
        self.told.append(("start", run))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.told.append(("log", step, metrics))

    def trajectories(self, step: int, runs: Sequence[Any]) -> None:
        self.told.append(("trajectories", step, list(runs)))

    def finish(self, error: str | None) -> None:
        self.told.append(("finish", error))
        self.ended.set()

    @property
    def calls(self) -> list[str]:
        return [str(told[0]) for told in self.told]


class Raising(Remembering):
    """Raises at each step."""

    remedy = "Give it another address"

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        raise ConnectionError(f"no answer to step {step}")


class Unreachable(Remembering):
    """Raises at its start."""

    def start(self, run: TrackedRun) -> None:
        raise SystemExit("no key")


class Hanging(Remembering):
    """Hangs in its first step, until `let_go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs, self.let_go = threading.Event(), threading.Event()

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.hangs.set()
        self.let_go.wait(PATIENCE)
        super().log(step, metrics)


def tracked(home: Path, **more: Any) -> TrackedRun:
    """A training."""
    given: dict[str, Any] = {"policy": "agent", "name": "first", "id": "agent-1", "kind": "train", **more}
    return TrackedRun(home=home, **given)


def a_run(reward: float | None = 0.5) -> Trajectory:
    """A run of a graph with a node in a node, a call of the policy, one of another model, and a tool that failed."""
    outer = {"node": "agent", "path": ["agent"], "namespace": "agent:1", "attempt": "a1"}
    inner = {"node": "model", "path": ["agent", "model"], "namespace": "agent:1|model:1", "attempt": "m1"}
    asked = [{"role": "user", "content": "Weather in Oslo?"}]
    return Trajectory(
        id="tr-1",
        scenario=Scenario(id="sc-1", input="Weather in Oslo?"),
        nodes=[
            NodeRun(**inner, parent="a1", started=101.0, seconds=1.0),
            NodeRun(**outer, started=100.5, seconds=3.0),
        ],
        completions=[
            CompletionCall(
                **inner,
                id="c-1",
                model="agent@2",
                version=2,
                messages=asked,
                message={"role": "assistant", "content": "Rain."},
                started=101.1,
                seconds=0.5,
            ),
            CompletionCall(id=None, model="judge", messages=asked, error="TimeoutError()", started=102.0, seconds=0.1),
        ],
        tool_calls=[
            ToolCall(
                **outer,
                tool="weather",
                arguments={"city": "Oslo"},
                result="no such city",
                is_error=True,
                started=102.5,
                seconds=0.25,
            )
        ],
        output={"messages": [{"role": "assistant", "content": "Rain."}]},
        reward=reward,
        reward_reason="short and right",
        metrics={"short": 1.0},
        graph_id="forecaster",
        rollout_id="ro-1",
        started=100.0,
        seconds=4.0,
    )


def a_run_with(text: str) -> Trajectory:
    """The same run, with a text wherever people, models and tools write theirs."""
    run, said = a_run(), {"role": "assistant", "content": text}
    run.scenario = run.scenario.model_copy(update={"input": text, "metadata": {"note": text}})
    run.completions[0].messages, run.completions[0].message = [{"role": "user", "content": text}], said
    run.tool_calls[0].arguments, run.tool_calls[0].result = {"city": text}, text
    run.output, run.error, run.reward_reason, run.metadata = {"messages": [said]}, text, text, {"note": text}
    return run
