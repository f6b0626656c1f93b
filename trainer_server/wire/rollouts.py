"""Rollouts and runs: what a rollout is registered with, what it did, and its rewards.

The fields of a run are declared here once. The server's records and the client's `Trajectory` derive from them.
"""

from __future__ import annotations

import math
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from trainer_server.wire.bounds import MOST_ROWS, ClosedRecord, ListOf, MapOf
from trainer_server.wire.numbers import ARRIVAL, Identifier, Integer, Moment, Seconds, reward_problem
from trainer_server.wire.policies import NAME_PATTERN, VersionNumber, VersionRef

ROLLOUT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:~-]{0,199}$"
"""Ids of rollouts that have a base URL of their own: 1 to 200 letters, digits, `.`, `_`, `:`, `~` and `-`."""
PolicyName = Annotated[str, Field(pattern=NAME_PATTERN)]
PinnedVersion = VersionRef | MapOf[PolicyName, VersionRef]
"""The version that a rollout asks of all policies, or of each by name. `follow`: the newest one at each call."""


def rollout_path(rollout_id: str) -> str:
    """The path under which a server takes the requests of one rollout: `/rollouts/{id}`, before `/v1/…`."""
    return f"/rollouts/{rollout_id}"


def rollout_api_path(rollout_id: str) -> str:
    """The path of a rollout in a server's API. An id that came in a header may have slashes: they are `%2F`."""
    return f"/api/rollouts/{quote(rollout_id, safe='')}"


class RolloutScenario(ClosedRecord):
    """The task of a rollout. Rollouts whose scenarios have the same id are compared with one another."""

    id: str = Field(default="", max_length=200)
    """Empty: clients make an id of input and metadata."""
    input: Any = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class RolloutSpec(ClosedRecord):
    """Body of `PUT /api/rollouts/{id}`: what holds for every request of the rollout, whoever makes it."""

    model_config = ConfigDict(allow_inf_nan=False)

    scenario: RolloutScenario | None = None
    """The task. A text is the scenario's id. None: the messages of the rollout's first request."""
    version: PinnedVersion | None = None
    """Version of the policies that requests name without one; None: what their names mean when the rollout begins."""
    temperature: float | None = Field(default=None, ge=0, le=10)
    """Sampling temperature, over that of requests; None: theirs."""
    hints: MapOf[PolicyName, str] = Field(default_factory=dict)
    """By policy: a text that is put into the prompts of its requests (`hinted_messages`). What the policy samples then
    has the hint in the ledger, and no training step takes it."""
    evaluation: bool = False
    """The rollout evaluates a version. No training step takes it."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """The user's data."""

    _scenario_of_a_text = field_validator("scenario", mode="before")(lambda value: _scenario(value))


class Registration(BaseModel):
    """What `PUT /api/rollouts/{id}` answers."""

    id: str
    policies: ListOf[str]
    """Names of the policies that the rollout can ask."""


class Reward(ClosedRecord):
    """Body of `POST /api/rollouts/{id}/reward`. The last reward of a rollout counts; earlier ones are kept."""

    model_config = ConfigDict(allow_inf_nan=False)

    reward: float
    metrics: MapOf[str, float] = Field(default_factory=dict)
    """Parts of the reward, or whatever else was measured."""
    reason: str | None = None
    """Why, in words."""
    source: str = Field(default="http", max_length=200)
    """Origin of the reward, read back as `Trajectory.reward_source`."""
    scenario: RolloutScenario | None = None
    """The task, where `PUT` did not name it. A text is the scenario's id."""

    @model_validator(mode="before")
    @classmethod
    def _finite(cls, data: Any) -> Any:
        if isinstance(data, dict):
            values = {"reward": data.get("reward", 0.0)}
            if isinstance(metrics := data.get("metrics"), dict):
                values |= {f"metrics.{name}": value for name, value in metrics.items()}
            for name, value in values.items():
                if value is None or (isinstance(value, float) and not math.isfinite(value)):
                    raise ValueError(
                        f"{name} is {'null' if value is None else value}, and has to be a finite number: post none for "
                        "a run that could not be scored"
                    )
        return data

    _scenario_of_a_text = field_validator("scenario", mode="before")(lambda value: _scenario(value))


class GivenReward(Reward):
    """A reward of a rollout, with its time."""

    time: float
    """Unix time, seconds."""


class RolloutCalls(BaseModel):
    """The requests of a rollout to the gateway, counted."""

    calls: int = 0
    """Requests that had the rollout's id and reached an engine."""
    versions: dict[str, list[int]] = Field(default_factory=dict)
    """The versions of these requests, by policy; without those to the base model."""
    temperatures: ListOf[float] = Field(default_factory=list)
    """The effective temperatures."""


class Place(BaseModel):
    """Where in a graph something happened. Empty outside of any node."""

    node: str | None = None
    agent: str | None = None
    """Name of the agent that the node belongs to: of `create_agent(name=…)`, or of a sub-agent of deepagents."""
    path: ListOf[str] = Field(default_factory=list)
    """Names of the nodes from the outermost graph inwards. The name of an agent stands before its nodes, unless the
    node that holds the agent has that name already: `["supervisor", "tools", "researcher", "model"]`."""
    namespace: str = ""
    """LangGraph's checkpoint namespace, which differs between branches, and between calls of a graph in one node. Node
    runs with the same one are attempts at the same work."""
    step: Integer | None = None
    branch: Integer | None = None
    """Index among the branches of a `Send` fan-out, or among the tasks of an entrypoint."""
    attempt: str | None = None
    """Id of the node's run. A retry or a resume of the node gets another id."""
    parent: str | None = None
    """Id of the run of the enclosing graph's node, inside a subgraph; None in the outermost graph."""


class ModelRequest(BaseModel):
    """A request to a chat model, with its answer."""

    id: str | None = None
    """Id of the completion in the ledger; None for models of other servers."""
    model: str | None = None
    """Name in the request: a policy (`agent`), a version (`agent@3`), or another model."""
    version: VersionNumber | None = None
    """Version of the policy that answered; None for the base model and for models of other servers."""
    message: dict[str, Any] | None = None
    """The answer, with role, content and tool_calls in OpenAI's format; None when the request failed."""
    messages: ListOf[dict[str, Any]] = Field(default_factory=list)
    """The request's messages, in OpenAI's format."""
    error: str | None = None
    """Why the answer is not whole; None: it is."""
    started: float
    """Unix time, seconds."""


class ToolRequest(BaseModel):
    """A call of a tool, with its result."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    result: str | None = None
    """Text of the result, or of the error; None: there is none."""
    tool_call_id: str | None = None
    """Id of the model's tool call that this answers."""
    started: float
    """Unix time, seconds."""


class ScoredRun(BaseModel):
    """What the record of a run has, whoever wrote it: the ledger, or the client that ran it."""

    id: str
    """Id of the rollout, or of the client's trajectory."""
    scenario: Any
    """The task: `RolloutScenario` on the wire, `Scenario` at the client."""
    reward: float | None = None
    """None: not scored, or scoring failed. Runs without a reward are never trained on."""
    reward_reason: str | None = None
    """A judge's reason for the reward, where a judge scored the run."""
    reward_source: str | None = None
    """Origin of the newest reward of a stored run, such as "feedback"; None: the reward function of the rollout."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """The parts of the reward."""
    evaluation: bool = False
    """The run evaluates a version. No training step takes it."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """The user's data: the `metadata` of `rollout`, or under `install` the metadata of the run's config."""
    started: float
    """Unix time, seconds."""
    seconds: float = 0.0


class RolloutCompletion(ModelRequest):
    """A completion of a rollout, without its tokens: `GET /api/completions/{id}` has them."""

    id: str
    model: str
    prompt_tokens: int | None = None
    """Tokens of the prompt."""
    sampled_tokens: int | None = None
    """Tokens of the answer."""


class RolloutToolCall(ToolRequest):
    """A tool call of the model, with the result that the next request of the rollout brought.

    `started` is the time of the request to the model that called the tool.
    """


class RolloutRecord(RolloutCalls, ScoredRun):
    """What `GET /api/rollouts/{id}` answers. `art_langgraph.Trajectory` reads the same JSON."""

    rollout_id: str
    scenario: RolloutScenario
    completions: ListOf[RolloutCompletion] = Field(default_factory=list)
    """In the order of their requests."""
    tool_calls: ListOf[RolloutToolCall] = Field(default_factory=list)
    rewards: ListOf[GivenReward] = Field(default_factory=list)
    """All its rewards, oldest first. The last one counts."""
    temperature: float | None = None
    """As registered."""
    requested_version: PinnedVersion | None = None
    """As registered."""
    seconds: float = 0.0
    """From the first request to the last."""


class RolloutListed(BaseModel):
    """A rollout in a list."""

    id: str
    scenario: str | None = None
    """Id of its scenario; None: it has none."""
    policies: ListOf[str] = Field(default_factory=list)
    """The policies that answered in it."""
    reward: float | None = None
    evaluation: bool = False
    created: float
    """Unix time, seconds, of its first request or its registration."""


class RolloutList(BaseModel):
    """What `GET /api/rollouts` answers."""

    rollouts: ListOf[RolloutListed]
    """Oldest first."""
    next: int | None = None
    """`after` of the next page; None: this is the last one."""


class TracePart(Place):
    """Something that happened in a run."""

    started: Moment
    """Unix time, seconds."""
    seconds: Seconds = 0.0


class TraceNode(TracePart):
    """A run of a node, or of a task of the functional API."""

    error: str | None = None
    interrupted: bool = False
    """An interrupt ended it. When the run is resumed, the node runs again from its beginning."""


class TraceCall(TracePart, ModelRequest):
    """A call of a chat model. The ledger has the messages of those that have an id."""

    superseded: str | None = None
    """Why the call does not count: its node ran again (`retry`, `resume`), or the thread was forked before
    it (`fork`)."""
    cached: bool = False
    """The answer came from LangChain's cache. It is trained in the run that sampled it, not here."""
    reward: float | None = None
    """Reward of this completion alone, set by a reward function; None: it has its node's or the run's reward."""

    @field_validator("message")
    @classmethod
    def _well_formed(cls, message: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        calls = (message or {}).get("tool_calls") or []
        good = isinstance(calls, list) and all(
            isinstance(call, dict) and isinstance(call.get("function", {}), dict) for call in calls
        )
        if info.context == ARRIVAL and not good:
            raise ValueError('tool_calls must be a list of {"id": …, "type": "function", "function": {…}}')
        return message


class TraceTool(TracePart, ToolRequest):
    """A tool call that was made."""

    structured: Any = None
    """Structured content of an MCP server's answer, if any."""
    content: ListOf[dict[str, Any]] = Field(default_factory=list)
    """Content of an MCP server's answer besides text: `type`, and for binary content `mimeType`, `bytes`, `sha256`."""
    is_error: bool = False
    failure: str | None = None
    """Why an MCP server gave no answer: `closed`, `timeout`, `protocol` or `missing`, as in `MCPError`; `cancelled`:
    the caller stopped waiting."""
    server: str | None = None
    """Name of the MCP server; None: the tool is none of an MCP server."""
    server_version: str | None = None


class RunFacts(ScoredRun):
    """The facts of a run that its client knows, besides its nodes and calls: `RunTrace` and the client's `Trajectory`
    have them."""

    output: Any = None
    """The graph's final state; None when it raised. A stored run has its messages, and plain data for the rest."""
    error: str | None = None
    """What the graph raised. The record has everything that happened until then."""
    reward_error: str | None = None
    judgement: str | None = None
    """Id of the judgement that gave the reward, where runs were scored by comparison with one another. Such rewards are
    compared with those of the same judgement only. None: the reward stands for itself."""
    node_rewards: dict[str, float] | None = None
    """Rewards by node, where the reward function returned `NodeRewards`. The first pattern that names a completion
    counts."""
    hints: dict[str, str] = Field(default_factory=dict)
    """By policy, the text that the trainer server put into its prompts. No training step takes a run with hints."""
    graph_id: str | None = None
    """Name of the graph, by the LangGraph server or by the graph itself."""
    thread_id: str | None = None
    """Id of LangGraph's thread."""


class RunTrace(RunFacts):
    """Body of `PUT /api/rollouts/{id}/trace`: what the client knows of a run that has ended, and the ledger does not.

    `art_langgraph.Trajectory` has the same fields; what it has besides is left out. The dashboard shows it.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")

    id: Identifier
    """Id of the trajectory. Training steps name it."""
    scenario: RolloutScenario
    metrics: MapOf[str, float] = Field(default_factory=dict)
    node_rewards: MapOf[str, float] | None = None
    hints: MapOf[str, str] = Field(default_factory=dict)
    nodes: ListOf[TraceNode] = Field(default_factory=list)
    completions: ListOf[TraceCall] = Field(default_factory=list)
    """`messages` are those of calls without an id only."""
    tool_calls: ListOf[TraceTool] = Field(default_factory=list)
    started: Moment
    """Unix time, seconds."""
    seconds: Seconds = 0.0
    left_out: ListOf[str] = Field(default_factory=list)
    """What the client left out because the run is too large to be sent."""

    @field_validator("reward")
    @classmethod
    def _check_reward(cls, reward: float | None, info: ValidationInfo) -> float | None:
        finite = reward if reward is not None and math.isfinite(reward) else 0.0
        if info.context == ARRIVAL and (wrong := reward_problem(finite)):
            raise ValueError(wrong)
        return reward


class RunTraces(ClosedRecord):
    """Body of `POST /api/rollouts/traces`: what a client knows of several runs that have ended."""

    traces: MapOf[str, dict[str, Any]] = Field(max_length=1000)
    """By id of the rollout: a `RunTrace`. Each is checked by itself."""


class TracesTaken(BaseModel):
    """What became of the traces of several runs."""

    taken: int = 0
    """How many are kept now."""
    deleted: ListOf[str] = Field(default_factory=list)
    """Rollouts that a user deleted. Reports of them are not stored."""
    refused: dict[str, str] = Field(default_factory=dict)
    """By rollout: what is wrong with its trace."""


class Erase(ClosedRecord):
    """Body of `POST /api/rollouts/erase`: what is deleted, with all that is left of it."""

    rollouts: ListOf[str] = Field(default_factory=list, max_length=1000)
    """Ids of rollouts."""
    completions: ListOf[str] = Field(default_factory=list, max_length=MOST_ROWS)
    """Ids of completions, those that belong to no rollout, for example."""


class Erased(BaseModel):
    """What was deleted. The same request again deletes nothing more."""

    rollouts: int = 0
    completions: int = 0
    jobs: int = 0
    """Jobs that have ended and used what was deleted: their files are gone, and their outcome is a line of
    `jobs/ended.jsonl`."""
    versions: int = 0
    rewritten: bool = True
    """Whether the databases were written anew. A database above 1 GiB is not: what was deleted is overwritten in it
    (SQLite's secure_delete)."""


def hinted_messages(messages: Any, hint: str) -> Any:
    """A conversation with a hint in it: at the end of the system message that it begins with, or as such a message.

    Args:
        messages: Of a chat request. What is no conversation is returned as it is: the request is refused anyway. So is
            a conversation that has the hint already, because it goes on from a recorded answer.
        hint: The text.
    """
    if not isinstance(messages, list) or not messages or not isinstance(first := messages[0], dict):
        return messages
    if first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": hint}, *messages]
    text = first.get("content") or ""
    parts = text if isinstance(text, list) else [{"type": "text", "text": text}]
    if any(isinstance(part, dict) and str(part.get("text")).endswith(hint) for part in parts):
        return messages
    content = [*text, {"type": "text", "text": f"\n\n{hint}"}] if isinstance(text, list) else f"{text}\n\n{hint}"
    return [{**first, "content": content}, *messages[1:]]


def unhinted_messages(messages: list[dict[str, Any]], hint: str) -> list[dict[str, Any]]:
    """A conversation without the hint that `hinted_messages` put into it."""
    first, *rest = messages
    content, end = first.get("content"), f"\n\n{hint}"
    if first.get("role") not in ("system", "developer"):
        return [first, *rest]
    if content == hint:
        return rest
    if isinstance(content, str):
        return [{**first, "content": content.removesuffix(end)}, *rest]
    return [{**first, "content": [part for part in content or () if part.get("text") != end]}, *rest]


def pinned_version(version: PinnedVersion | None, policy: str) -> VersionRef | None:
    """The version that a rollout asks of a policy; None: any."""
    return version.get(policy) if isinstance(version, dict) else version


def _scenario(value: Any) -> Any:
    return {"id": value} if isinstance(value, str) else value
