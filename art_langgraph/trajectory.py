"""What one run of a graph did, and groups of such runs to be compared with one another."""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from typing import Any, Self

from langchain_core.load import dumpd
from langchain_core.messages import BaseMessage
from pydantic import BaseModel, ConfigDict, Field, field_serializer

from trainer_server.wire import GroupRef, TrajectoryRef


class Scenario(BaseModel):
    """One task that a graph can be run on.

    input: what the graph is invoked with. metadata: whatever a reward function needs to know. id: identifies the
    scenario across runs; by default a hash of the input.
    """

    id: str = ""
    input: Any
    metadata: dict[str, Any] = Field(default_factory=dict)

    def model_post_init(self, _context: Any) -> None:
        if not self.id:
            text = json.dumps(self.input, sort_keys=True, default=str)
            self.id = f"sc-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @classmethod
    def of(cls, given: Scenario | dict[str, Any] | str) -> Scenario:
        """A scenario from itself, from a dict (with the key `input`, or being the input), or from a user message."""
        if isinstance(given, Scenario):
            return given
        if isinstance(given, str):
            return cls(input={"messages": [("user", given)]})
        if "input" in given and set(given) <= {"id", "input", "metadata"}:
            return cls(**given)
        return cls(input=given)


class Place(BaseModel):
    """Where in a graph something happened. Empty outside of any node."""

    node: str | None = None
    path: list[str] = Field(default_factory=list)
    """Names of the nodes from the outermost graph inwards."""
    namespace: str = ""
    """LangGraph's checkpoint namespace: tells branches apart."""
    step: int | None = None
    attempt: str | None = None
    """Id of the node's run: a retried or resumed node has another one."""


class CompletionCall(Place):
    """One answer of a chat model."""

    id: str | None
    """Of our gateway; None for other models, whose answers are context and never trained."""
    model: str | None = None
    message: dict[str, Any] | None = None
    """The answer: role, content, tool_calls, as OpenAI has them."""
    messages: list[dict[str, Any]] = Field(default_factory=list)
    """What the model was given."""
    error: str | None = None
    superseded: bool = False
    """From an attempt that was run again; not trained."""
    started: float
    seconds: float = 0.0

    @property
    def trainable(self) -> bool:
        return self.id is not None and not self.superseded and self.error is None


class ToolCall(Place):
    """One tool invocation that really happened."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    result: str | None = None
    """Text of the result, or of the error."""
    structured: Any = None
    """Structured content, where an MCP server gave some."""
    is_error: bool = False
    tool_call_id: str | None = None
    """Id of the model's tool call that this answers."""
    server: str | None = None
    """Name of the MCP server, when it went to one."""
    started: float
    seconds: float = 0.0


class NodeRun(Place):
    """One run of a node."""

    error: str | None = None
    started: float
    seconds: float = 0.0


class Trajectory(BaseModel):
    """What one run of a graph did."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    id: str = Field(default_factory=lambda: f"tr-{uuid.uuid4().hex}")
    scenario: Scenario
    completions: list[CompletionCall] = Field(default_factory=list)
    tool_calls: list[ToolCall] = Field(default_factory=list)
    nodes: list[NodeRun] = Field(default_factory=list)
    output: Any = None
    """The graph's final state; None when it raised."""
    error: str | None = None
    """What the graph raised. All that happened until then is kept."""
    reward: float | None = None
    """None: not scored, or scoring failed; then it is never trained on."""
    reward_error: str | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    """The parts of the reward."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    started: float = Field(default_factory=time.time)
    seconds: float = 0.0

    @field_serializer("output", "scenario", when_used="json")
    def _plain(self, value: Any) -> Any:
        return plain(value)

    @property
    def completion_ids(self) -> list[str]:
        """Ids of what can be trained, each once."""
        return list(dict.fromkeys(one.id for one in self.completions if one.trainable and one.id))

    def ref(self) -> TrajectoryRef:
        """What a training step needs of it."""
        usable = self.reward is not None and math.isfinite(self.reward)
        return TrajectoryRef(id=self.id, reward=self.reward if usable else None, completions=self.completion_ids)


class TrajectoryGroup(BaseModel):
    """Trajectories of one scenario, compared with one another."""

    scenario: Scenario
    trajectories: list[Trajectory] = Field(default_factory=list)

    @classmethod
    def by_scenario(cls, trajectories: list[Trajectory]) -> list[Self]:
        """Groups trajectories by their scenario's id, in order of first appearance."""
        groups: dict[str, Self] = {}
        for one in trajectories:
            groups.setdefault(one.scenario.id, cls(scenario=one.scenario)).trajectories.append(one)
        return list(groups.values())

    @property
    def rewards(self) -> list[float | None]:
        return [one.reward for one in self.trajectories]

    def ref(self) -> GroupRef:
        """What a training step needs of it."""
        return GroupRef(scenario_id=self.scenario.id, trajectories=[one.ref() for one in self.trajectories])


def plain(value: Any) -> Any:
    """JSON-safe form of a graph's state: messages as LangChain serialises them, the unknown as text."""
    if isinstance(value, BaseMessage):
        return dumpd(value)
    if isinstance(value, BaseModel):
        return {key: plain(getattr(value, key)) for key in type(value).model_fields}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(one) for one in value]
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return repr(value)
