"""Trajectories: the records of a graph's runs, and groups of them to compare."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from langchain_core.messages import BaseMessage
from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator

from art_langgraph.attempts import Attempts, Supersession, remark
from art_langgraph.attempts import NodeRun as NodeRun
from art_langgraph.messages import final_text, from_openai, messages_of, plain, revive
from trainer_server.wire import ConfigError, VersionRef
from trainer_server.wire.rollouts import Place as Place
from trainer_server.wire.rollouts import RunFacts, TraceCall, TraceTool


def scenario_id(input: Any, metadata: Mapping[str, Any] | None = None) -> str:
    """The id of a scenario without one of its own: a digest, the same in every process.

    Args:
        input: Input of the scenario.
        metadata: Its metadata.
    """
    task = [plain(input), plain(dict(metadata))] if metadata else plain(input)
    return f"sc-{hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest()[:12]}"


class Scenario(BaseModel):
    """A task that a graph can be run on.

    Args:
        input: What the graph is invoked with. A text is a user's message: a graph that takes messages gets it as the
            first message, a graph that takes a plain text gets the text.
        metadata: Whatever a factory of graphs or a reward function needs to know, such as a seed or the right answer.
        id: Identifies the scenario across runs; by default a hash of input and metadata. Runs of scenarios with the
            same id are compared with one another.
    """

    id: str = ""
    input: Any
    metadata: dict[str, Any] = Field(default_factory=dict)

    @field_validator("input", mode="before")
    @classmethod
    def _with_messages(cls, value: Any) -> Any:
        return revive(value)

    def model_post_init(self, _context: Any) -> None:
        if not self.id:
            self.id = scenario_id(self.input, self.metadata)

    @classmethod
    def of(cls, task: Any) -> Scenario:
        """A scenario from itself, from a dict with `id` and `input` (and `metadata`), or from an input of the graph.

        Any other dict is the graph's input, also `{"input": "hello"}`. A text is a user's message; `rollout` makes it
        the first message of a graph that takes messages.
        """
        if isinstance(task, Scenario):
            return task
        if isinstance(task, dict) and {"id", "input"} <= task.keys() <= {"id", "input", "metadata"}:
            return cls(**{**task, "id": "" if task["id"] is None else str(task["id"])})
        return cls(input=task)

    @classmethod
    def each(cls, tasks: Iterable[Any]) -> list[Scenario]:
        """Scenarios, each of what `of` takes.

        Raises:
            ConfigError: `tasks` is a single task or the name of a file: its letters or keys would become tasks.
        """
        if isinstance(tasks, (str, bytes, Path, Mapping, Scenario)):
            raise ConfigError(
                f"scenarios={tasks!r:.80} is no list: give a list of tasks, also of a single one; "
                "load_scenarios(path) reads a file of them"
            )
        return [cls.of(task) for task in tasks]


class CompletionCall(TraceCall):
    """A call of a chat model, with its answer. Without an id, its answer is never trained."""

    id: str | None
    superseded: Supersession | None = None
    prompt_tokens: int | None = None
    """Tokens of the prompt, as the answer says; None: it does not say. Of several answers to one request, the first has
    the tokens of all."""
    cached_tokens: int | None = None
    """Those of them that the engine had in its cache; None: the answer does not say."""
    sampled_tokens: int | None = None
    """Tokens of the answer; counted like `prompt_tokens`."""
    text_call: str | None = None
    """The tool that the answer calls in its text, which the engine's parser did not take; None: none, or the call was
    not recorded by LangChain's callbacks, which know the tools of a request."""
    started: float
    seconds: float = 0.0

    @property
    def policy(self) -> str | None:
        """Name of the policy without its version; None for models of other servers."""
        return self.model.partition("@")[0] if self.id is not None and self.model else None

    @property
    def trainable(self) -> bool:
        """Whether a training step can take it: the gateway answered, and the call was not superseded or cached."""
        return self.id is not None and self.superseded is None and self.error is None and not self.cached


class ToolCall(TraceTool):
    """A tool call that was made."""

    progress: list[dict[str, Any]] = Field(default_factory=list)
    """Progress notifications of the MCP server: `progress`, `total`, `message`. The first hundred."""
    started: float
    seconds: float = 0.0


REWARD_FIELDS = (
    "reward",
    "reward_error",
    "reward_reason",
    "judgement",
    "independent_reward_error",
    "node_rewards",
    "reward_source",
)
"""The fields of a run that a scoring sets, besides its metrics and the rewards of its completions."""


class Trajectory(RunFacts):
    """The record of a graph's run.

    This package writes its facts into the other fields; `metadata` belongs to the user.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, ser_json_inf_nan="strings")

    id: str = Field(default_factory=lambda: f"tr-{uuid.uuid4().hex}")
    scenario: Scenario
    completions: list[CompletionCall] = Field(default_factory=list)
    tool_calls: list[ToolCall] = Field(default_factory=list)
    nodes: list[NodeRun] = Field(default_factory=list)
    independent_reward_error: str | None = None
    """Why the run had no reward of its own before it was scored in its group."""
    imported: str | None = None
    """The system that recorded the run, such as "langsmith", where it was imported. No training step takes it, because
    the tokens of its completions are not known."""
    temperature: float | None = None
    """Temperature of the rollout's requests; None: that of the graph or the policy."""
    requested_version: int | dict[str, VersionRef] | None = None
    """Version of the rollout's requests, for all policies or by policy; None: the version that their names mean.
    `versions` has those that answered."""
    group: str | None = None
    """Names the group of a training run that this run was made for: `RUN/CHOICE.PLACE/…`, by the choices of the
    sampler. None: the training goes on from nothing that is stored, or there is none."""
    rollout_id: str | None = None
    """Name of the run at the gateway: the completions' `rollout` in the ledger."""
    assistant_id: str | None = None
    """Id of the assistant on a LangGraph server."""
    resumes: Literal["newest", "checkpoint"] | None = None
    """From which state of its thread the run went on, where it had no input of its own but the answer to an interrupt,
    or none: from the newest, or from a checkpoint that its config named. None: it had an input."""
    run_id: str | None = None
    """LangGraph's id of the root run; on a LangGraph server, the id of the run."""
    started: float = Field(default_factory=time.time)
    traceparent: str | None = Field(default=None, exclude=True)
    """The span of the rollout, while traces are on and the run is of this process. It is not stored."""

    @field_validator("output", mode="before")
    @classmethod
    def _with_messages(cls, value: Any) -> Any:
        return revive(value)

    @field_serializer("output", "scenario")
    def _plain(self, value: Any) -> Any:
        return plain(value)

    @property
    def untrained(self) -> bool:
        """Whether no training step takes the run: it evaluates a version, had hints, or was imported."""
        return self.evaluation or bool(self.hints) or self.imported is not None

    @property
    def scored(self) -> bool:
        """Whether the run has a reward, or one of its completions has a reward of its own."""
        return self.reward is not None or any(call.reward is not None for call in self.completions)

    @property
    def messages(self) -> list[BaseMessage]:
        """The conversation: the `messages` of the final state.

        Of a run whose final state has none, or that has no final state (it raised, or has not ended): the request of
        its last model call that has an answer, and the answer. Empty where there is neither. The same for live, stored
        and imported runs.
        """
        if messages := messages_of(self.output):
            return messages
        for call in reversed(self.completions):
            if call.message is not None:
                return from_openai([*call.messages, call.message])
        return []

    @property
    def final_text(self) -> str:
        """Text of the model's last message in `messages`, or the output itself where it is a text; "" when none."""
        return self.output if isinstance(self.output, str) else final_text(self.messages)

    @property
    def versions(self) -> dict[str, list[int]]:
        """Versions that answered, by policy: `{"agent": [3]}`.

        A rollout gets the same version of a policy in all its calls, unless it follows the newest one (`pins`). Other
        runs may get several, when the policy is trained meanwhile.
        """
        numbers: dict[str, set[int]] = {}
        for call in self.completions:
            if call.policy is not None and call.version is not None:
                numbers.setdefault(call.policy, set()).add(call.version)
        return {policy: sorted(versions) for policy, versions in numbers.items()}

    @property
    def waiting(self) -> set[str]:
        """Checkpoint namespaces of the nodes that wait for the answer to an interrupt; empty where the run has ended.

        Of nodes in subgraphs it has the outermost, which waits with them.
        """
        outermost = [node for node in self.nodes if node.parent is None]
        supersessions = Attempts(self.nodes).supersessions
        last = max((node.step or 0 for node in outermost), default=0)  # a graph that went on waits no longer
        stops = [node for node in outermost if node.interrupted and (node.step or 0) >= last]
        return {node.namespace for node in stops if node.attempt not in supersessions}

    def resumed_by(self, later: Trajectory) -> Trajectory:
        """This run and the run that went on with its thread, as a single one.

        It has the scenario of this run and the output of the later one. What was done twice, because an interrupted
        node begins again, counts once. The reward is that of the later run, or of this one where the later has none.

        Args:
            later: The run that resumed the thread.

        Returns:
            A new trajectory, with the id of this one.
        """
        whole = Attempts([*self.nodes, *later.nodes]).supersessions
        completions = []
        for part in (self, later):
            calls = [call.model_copy() for call in part.completions]
            remark(calls, Attempts(part.nodes).supersessions, whole)
            completions += calls
        rewards = (
            {name: getattr(later, name) for name in (*REWARD_FIELDS, "metrics")}
            if later.scored or later.reward_error
            else {}
        )
        return self.model_copy(
            update={
                **rewards,
                "completions": completions,
                "tool_calls": [*self.tool_calls, *later.tool_calls],
                "nodes": [*self.nodes, *later.nodes],
                "output": later.output,
                "error": later.error,
                "evaluation": self.evaluation or later.evaluation,
                "hints": {**self.hints, **later.hints},
                "metadata": {**self.metadata, **later.metadata},
                "seconds": self.seconds + later.seconds,
            }
        )

    @property
    def completion_ids(self) -> list[str]:
        """Ids of the completions that can be trained, without duplicates."""
        return list(dict.fromkeys(call.id for call in self.completions if call.trainable and call.id))


class TrajectoryGroup(BaseModel):
    """Trajectories of a scenario, which are compared with each other."""

    scenario: Scenario
    trajectories: list[Trajectory] = Field(default_factory=list)

    @classmethod
    def by_scenario(cls, trajectories: list[Trajectory]) -> list[Self]:
        """Groups trajectories by their scenario's id, in order of first appearance."""
        groups: dict[str, Self] = {}
        for trajectory in trajectories:
            groups.setdefault(trajectory.scenario.id, cls(scenario=trajectory.scenario)).trajectories.append(trajectory)
        return list(groups.values())

    @property
    def rewards(self) -> list[float | None]:
        """The reward of each trajectory, in their order; None where it has none."""
        return [trajectory.reward for trajectory in self.trajectories]

    @property
    def judgements(self) -> set[str | None]:
        """The judgements that scored the runs; None among them: a reward that stands for itself.

        A training step compares rewards of one judgement, and rewards that stand for themselves, but never both.
        """
        return {run.judgement for run in self.trajectories if run.scored and not run.untrained}


_MOST_LINKS = 128
"""Links that a span may have, by OpenTelemetry's limits."""


def traces_of(runs: Iterable[Trajectory]) -> list[str]:
    """The spans of rollouts that have one; as many as a span may be linked with."""
    return [run.traceparent for run in runs if run.traceparent is not None][:_MOST_LINKS]
