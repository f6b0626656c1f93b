"""What one run of a graph did, and groups of such runs to be compared with one another."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from typing import Any, Literal, Self

from langchain_core.messages import BaseMessage
from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator

from art_langgraph.messages import final_text, from_openai, messages_of, plain, revive


class Scenario(BaseModel):
    """One task that a graph can be run on.

    Args:
        input: What the graph is invoked with. A text is what a user says: a graph that takes messages gets it as the
            first one, a graph that takes a plain text as it is.
        metadata: Whatever a reward function needs to know, such as the right answer.
        id: Identifies the scenario across runs; by default a hash of the input.
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
            text = json.dumps(plain(self.input), sort_keys=True)
            self.id = f"sc-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @classmethod
    def of(cls, given: Any) -> Scenario:
        """A scenario from itself, from a dict with `id` and `input` (and `metadata`), or from an input of the graph.

        Any other dict is the graph's input, also `{"input": "hello"}`. A text is what a user says; `rollout` makes it
        the first message of a graph that takes messages.
        """
        if isinstance(given, Scenario):
            return given
        if isinstance(given, dict) and {"id", "input"} <= given.keys() <= {"id", "input", "metadata"}:
            return cls(**{**given, "id": str(given["id"])})
        return cls(input=given)


class Place(BaseModel):
    """Where in a graph something happened. Empty outside of any node."""

    node: str | None = None
    agent: str | None = None
    """Name of the agent that the node belongs to: of `create_agent(name=…)`, or of a sub-agent of deepagents."""
    path: list[str] = Field(default_factory=list)
    """Names of the nodes from the outermost graph inwards. The name of an agent stands before its nodes, unless the
    node that holds the agent has that name already: `["supervisor", "tools", "researcher", "model"]`."""
    namespace: str = ""
    """LangGraph's checkpoint namespace: tells branches apart."""
    step: int | None = None
    branch: int | None = None
    """Index among the branches of a `Send` fan-out, or among the tasks of an entrypoint."""
    attempt: str | None = None
    """Id of the node's run: a retried or resumed node has another one."""
    parent: str | None = None
    """Id of the run of the enclosing graph's node, inside a subgraph."""


class CompletionCall(Place):
    """One answer of a chat model."""

    id: str | None
    """Of our gateway; None for other models, whose answers are context and never trained."""
    model: str | None = None
    """What the graph asked for: a policy, one of its versions (`name@3`), or another model."""
    version: int | None = None
    """Which version of the policy answered; None for the base model and for models that are not our gateway's."""
    message: dict[str, Any] | None = None
    """The answer: role, content, tool_calls, as OpenAI has them."""
    messages: list[dict[str, Any]] = Field(default_factory=list)
    """What the model was given."""
    error: str | None = None
    superseded: Literal["retry", "resume"] | None = None
    """Why the node was run again, if it was: after an error or an interrupt. Then this call does not count."""
    cached: bool = False
    """Answered from LangChain's cache: trained where it was sampled, not here."""
    reward: float | None = None
    """A reward of its own, set by a reward function; None: the trajectory's, or its node's."""
    started: float
    seconds: float = 0.0

    @property
    def policy(self) -> str | None:
        """Name of the policy without its version, for answers of our gateway."""
        return self.model.partition("@")[0] if self.id is not None and self.model else None

    @property
    def trainable(self) -> bool:
        return self.id is not None and self.superseded is None and self.error is None and not self.cached


class ToolCall(Place):
    """One tool invocation that really happened."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    result: str | None = None
    """Text of the result, or of the error."""
    structured: Any = None
    """Structured content, where an MCP server gave some."""
    content: list[dict[str, Any]] = Field(default_factory=list)
    """What an MCP server answered besides text: `type`, and of binary content `mimeType`, `bytes` and `sha256`."""
    is_error: bool = False
    failure: str | None = None
    """Why an MCP server gave no answer: `closed`, `timeout`, `protocol` or `missing`, as in `MCPError`; `cancelled`:
    nobody waited for it."""
    progress: list[dict[str, Any]] = Field(default_factory=list)
    """What an MCP server said while it worked: `progress`, `total`, `message`. The first hundred."""
    tool_call_id: str | None = None
    """Id of the model's tool call that this answers."""
    server: str | None = None
    """Name of the MCP server, when it went to one."""
    server_version: str | None = None
    started: float
    seconds: float = 0.0


class NodeRun(Place):
    """One run of a node."""

    error: str | None = None
    interrupted: bool = False
    """Ended by an interrupt: when the run is resumed, the node runs again from its beginning."""
    started: float
    seconds: float = 0.0


class Trajectory(BaseModel):
    """What one run of a graph did.

    What this package knows about the run has a field of its own; `metadata` belongs to the user.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    id: str = Field(default_factory=lambda: f"tr-{uuid.uuid4().hex}")
    scenario: Scenario
    completions: list[CompletionCall] = Field(default_factory=list)
    tool_calls: list[ToolCall] = Field(default_factory=list)
    nodes: list[NodeRun] = Field(default_factory=list)
    output: Any = None
    """The graph's final state; None when it raised. What is no message is plain data in a stored run."""
    error: str | None = None
    """What the graph raised. All that happened until then is kept."""
    reward: float | None = None
    """None: not scored, or scoring failed; then it is never trained on."""
    reward_error: str | None = None
    reward_reason: str | None = None
    """What a judge said of the run, where a judge scored it."""
    independent_reward_error: str | None = None
    """Why the run had no reward of its own before it was scored in its group."""
    node_rewards: dict[str, float] | None = None
    """Rewards by node, where the reward function gave some."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """The parts of the reward."""
    reward_source: str | None = None
    """Who gave a stored run its newest reward: "feedback", "judge", …; None: the run's own reward function."""
    evaluation: bool = False
    """The run measures a version: no training step takes it."""
    temperature: float | None = None
    """Temperature that the rollout asked for; None: what the graph or its policy says."""
    requested_version: int | dict[str, int] | None = None
    """Version that the rollout asked for, of all policies or by name; None: the newest. See `versions`."""
    rollout_id: str | None = None
    """Name of the run at the gateway: the completions' `rollout` in the ledger."""
    graph_id: str | None = None
    """Name of the graph, as a LangGraph server or the graph itself has it."""
    assistant_id: str | None = None
    """LangGraph server's id of the assistant."""
    thread_id: str | None = None
    run_id: str | None = None
    """LangGraph's id of the root run; on a LangGraph server, the id of the run."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """The user's facts: those given to `rollout`, or the metadata of the run's config under `install`."""
    started: float = Field(default_factory=time.time)
    seconds: float = 0.0

    @field_validator("output", mode="before")
    @classmethod
    def _with_messages(cls, value: Any) -> Any:
        return revive(value)

    @field_serializer("output", "scenario", when_used="json")
    def _plain(self, value: Any) -> Any:
        return plain(value)

    @property
    def messages(self) -> list[BaseMessage]:
        """The conversation: the `messages` of the final state.

        Of a run whose final state has none, or that has no final state (it raised, or has not ended): what its last
        answered model call was given, and that answer. Empty where there is neither. The same for live, stored and
        imported runs.
        """
        if found := messages_of(self.output):
            return found
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

        A rollout gets one version of each policy. Other runs may get several, when a policy is trained meanwhile.
        """
        answered: dict[str, set[int]] = {}
        for call in self.completions:
            if call.policy is not None and call.version is not None:
                answered.setdefault(call.policy, set()).add(call.version)
        return {policy: sorted(versions) for policy, versions in answered.items()}

    @property
    def completion_ids(self) -> list[str]:
        """Ids of what can be trained, each once."""
        return list(dict.fromkeys(one.id for one in self.completions if one.trainable and one.id))


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
