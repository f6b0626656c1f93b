"""Records of rollouts: their registration, what they did, and their rewards."""

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
"""The version that a rollout asks of all policies, or of each by name."""


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
            numbers = {"reward": data.get("reward", 0.0)}
            if isinstance(metrics := data.get("metrics"), dict):
                numbers |= {f"metrics.{name}": value for name, value in metrics.items()}
            for name, value in numbers.items():
                if value is None or (isinstance(value, float) and not math.isfinite(value)):
                    raise ValueError(
                        f"{name} is {'null' if value is None else value}, and has to be a finite number: post none for "
                        "a run that could not be scored"
                    )
        return data

    _scenario_of_a_text = field_validator("scenario", mode="before")(lambda value: _scenario(value))


class GivenReward(Reward):
    """A reward that a rollout was given."""

    time: float
    """Unix time, seconds."""


class RolloutCalls(BaseModel):
    """What a rollout has asked the gateway for."""

    calls: int = 0
    """Requests that had the rollout's id and reached an engine."""
    versions: dict[str, list[int]] = Field(default_factory=dict)
    """The versions that were asked, by policy; without requests to the base model."""
    temperatures: ListOf[float] = Field(default_factory=list)
    """The effective temperatures."""


class RolloutCompletion(BaseModel):
    """A completion of a rollout, without its tokens: `GET /api/completions/{id}` has them."""

    id: str
    model: str
    """What the request named: a policy (`agent`), a version (`agent@3`), or the base model."""
    version: int | None = None
    """Version of the policy that answered; None: the base model."""
    message: dict[str, Any] | None = None
    """The answer, in OpenAI's format."""
    messages: ListOf[dict[str, Any]] = Field(default_factory=list)
    """The request's messages."""
    error: str | None = None
    """Why the answer is not whole; None: it is."""
    prompt_tokens: int | None = None
    """Tokens of the prompt."""
    sampled_tokens: int | None = None
    """Tokens of the answer."""
    started: float
    """Unix time, seconds."""


class RolloutToolCall(BaseModel):
    """A tool call of the model, with the result that the next request of the rollout brought."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    result: str | None = None
    """Text of the tool's message; None: no request of the rollout has one."""
    tool_call_id: str | None = None
    started: float
    """When the model was asked that called the tool. Unix time, seconds."""


class RolloutRecord(RolloutCalls):
    """What `GET /api/rollouts/{id}` answers. `art_langgraph.Trajectory` reads the same JSON."""

    id: str
    rollout_id: str
    scenario: RolloutScenario
    completions: ListOf[RolloutCompletion] = Field(default_factory=list)
    """In the order of their requests."""
    tool_calls: ListOf[RolloutToolCall] = Field(default_factory=list)
    reward: float | None = None
    """None: it was given none."""
    reward_reason: str | None = None
    reward_source: str | None = None
    metrics: MapOf[str, float] = Field(default_factory=dict)
    rewards: ListOf[GivenReward] = Field(default_factory=list)
    """All that it was given, oldest first. The last one counts."""
    evaluation: bool = False
    temperature: float | None = None
    """As registered."""
    requested_version: PinnedVersion | None = None
    """As registered."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    started: float
    """Unix time, seconds."""
    seconds: float = 0.0
    """From the first request to the last."""


class RolloutListed(BaseModel):
    """A rollout in a list."""

    id: str
    scenario: str | None = None
    """Id of its scenario, where it was given one."""
    policies: ListOf[str] = Field(default_factory=list)
    """The policies that answered in it."""
    reward: float | None = None
    evaluation: bool = False
    created: float
    """Unix time, seconds: when the server first heard of it."""


class RolloutList(BaseModel):
    """What `GET /api/rollouts` answers."""

    rollouts: ListOf[RolloutListed]
    """Oldest first."""
    next: int | None = None
    """`after` of the next page; None: this is the last one."""


class TracePlace(BaseModel):
    """Where in a graph something happened. The fields are those of the client's `Place`."""

    node: str | None = None
    agent: str | None = None
    path: ListOf[str] = Field(default_factory=list)
    """Names of the nodes from the outermost graph inwards."""
    namespace: str = ""
    """Checkpoint namespace. Runs of nodes with the same one are attempts at the same work."""
    step: Integer | None = None
    branch: Integer | None = None
    attempt: str | None = None
    """Id of the node's run."""
    parent: str | None = None
    """Id of the run of the enclosing graph's node; None in the outermost graph."""
    started: Moment
    """Unix time, seconds."""
    seconds: Seconds = 0.0


class TraceNode(TracePlace):
    """A run of a node."""

    error: str | None = None
    interrupted: bool = False


class TraceCall(TracePlace):
    """A call of a chat model. The ledger has the messages of those that have an id."""

    id: str | None = None
    """Id of the completion in the ledger; None for models of other servers."""
    model: str | None = None
    version: VersionNumber | None = None
    message: dict[str, Any] | None = None
    messages: ListOf[dict[str, Any]] = Field(default_factory=list)
    """Of calls without an id only."""
    error: str | None = None
    superseded: str | None = None
    """Why the call does not count: its node ran again (`retry`, `resume`), or the thread was forked before
    it (`fork`)."""
    cached: bool = False
    reward: float | None = None

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


class TraceTool(TracePlace):
    """A tool call that was made."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    result: str | None = None
    structured: Any = None
    content: ListOf[dict[str, Any]] = Field(default_factory=list)
    is_error: bool = False
    failure: str | None = None
    tool_call_id: str | None = None
    server: str | None = None
    """Name of the MCP server; None: the tool is none of an MCP server."""
    server_version: str | None = None


class RunTrace(BaseModel):
    """Body of `PUT /api/rollouts/{id}/trace`: what the client knows of a run that has ended, and the ledger does not.

    `art_langgraph.Trajectory` has the same fields; what it has besides is left out. The dashboard shows it.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")

    id: Identifier
    """Id of the trajectory. Training steps name it."""
    scenario: RolloutScenario
    nodes: ListOf[TraceNode] = Field(default_factory=list)
    completions: ListOf[TraceCall] = Field(default_factory=list)
    tool_calls: ListOf[TraceTool] = Field(default_factory=list)
    output: Any = None
    """The graph's final state."""
    error: str | None = None
    """What the graph raised."""
    reward: float | None = None
    reward_error: str | None = None
    reward_reason: str | None = None
    """What a judge said."""
    reward_source: str | None = None
    judgement: str | None = None
    """Runs with the same one were judged together."""
    node_rewards: MapOf[str, float] | None = None
    metrics: MapOf[str, float] = Field(default_factory=dict)
    evaluation: bool = False
    hints: MapOf[str, str] = Field(default_factory=dict)
    graph_id: str | None = None
    thread_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
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
    """Rollouts that a user deleted. Nothing that is told of them is kept."""
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


def pinned_version(version: PinnedVersion | None, policy: str) -> VersionRef | None:
    """The version that a rollout asks of a policy; None: any."""
    return version.get(policy) if isinstance(version, dict) else version


def _scenario(value: Any) -> Any:
    return {"id": value} if isinstance(value, str) else value
