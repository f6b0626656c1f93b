"""What a run of another system becomes: a recorded run, a scenario, demonstrations."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from art_langgraph.messages import plain
from art_langgraph.traces.messages import as_text, is_repr, parse_json
from art_langgraph.traces.problems import Unreadable
from art_langgraph.trajectory import CompletionCall, Scenario, ToolCall, Trajectory, scenario_id
from trainer_server.common.jsonl import explain
from trainer_server.wire import Conversation, reward_problem

Messages = list[dict[str, Any]]
_NOTHING = Unreadable(
    "runs that cannot be imitated: an answer has neither content nor calls of tools", "they are scenarios all the same"
)
_REPR = Unreadable(
    "runs that cannot be imitated: an answer is Python's text of objects",
    "record answers as JSON; they are scenarios all the same",
)


@dataclass(slots=True)
class ModelCall:
    """A call of a chat model. Messages and tools are in OpenAI's form."""

    messages: Messages
    answer: dict[str, Any] | None
    """None: the call failed."""
    tools: list[dict[str, Any]] | None = None
    model: str | None = None
    start_time: float = 0.0
    """Unix time; 0: not known."""
    seconds: float = 0.0
    error: str | None = None
    node: str | None = None
    """Name of the graph's node, where the run is one of LangGraph."""
    agent: str | None = None


@dataclass(slots=True)
class ForeignRun:
    """A run that another system recorded."""

    source: str
    """The system: langsmith, langfuse, otel or openai-jsonl."""
    id: str | None
    """Its id there; None: it has none, and is known by its content."""
    calls: list[ModelCall] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    input: Any = None
    """Input of the graph; None: not known, or the run is a conversation only."""
    output: Any = None
    """What the graph returned; None: not known."""
    answer: str | None = None
    """The recorded answer to the task, which the scenario has as `metadata["answer"]`; None: it has none."""
    error: str | None = None
    scores: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Feedback by name."""
    start_time: float | None = None
    seconds: float = 0.0
    name: str | None = None
    thread_id: str | None = None
    run_id: str | None = None
    """LangGraph's id of the run, where the system has it."""
    metadata: dict[str, Any] = field(default_factory=dict)
    line: int = 0
    """Where it begins in the file."""
    repeat_lines: list[int] = field(default_factory=list)
    """Further lines of the file that have the same run once more."""

    @property
    def fingerprint(self) -> str:
        """The same for the same run in every export of it."""
        identity: Any = self.id or [[call.messages, call.answer, call.tools] for call in self.calls]
        text = json.dumps([self.source, identity], sort_keys=True, default=str)
        return f"tr-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each kind of feedback, without what is no finite number."""
        finite = {name: [score for score in scores if math.isfinite(score)] for name, scores in self.scores.items()}
        return {name: statistics.fmean(scores) for name, scores in finite.items() if scores}

    def reward(self, feedback: str | None) -> float | None:
        """The run's reward.

        Args:
            feedback: Name of the feedback that is the reward; None: the only one that the run has.

        Raises:
            Unreadable: The run has several, and none was named.
        """
        metrics = self.metrics
        if feedback is None and len(metrics) > 1:
            raise Unreadable(
                "runs with several kinds of feedback, which get no reward",
                f"name one by --feedback NAME: {', '.join(sorted(metrics))}",
            )
        reward = next(iter(metrics.values()), None) if feedback is None else metrics.get(feedback)
        if reward is not None and (problem := reward_problem(reward)):
            raise Unreadable("runs whose feedback cannot be a reward, which get none", problem)
        return reward

    @property
    def lacks_tools(self) -> bool:
        """Whether a call of the model calls tools, or has called them, whose definitions are not in the export."""
        return any(
            not call.tools and any(message.get("tool_calls") for message in (*call.messages, call.answer or {}))
            for call in self.calls
        )

    def scenario(self, *, system: bool = True) -> Scenario | None:
        """The task of the run; None where it is not known.

        It is the graph's input, or the first conversation up to the last message of a user.

        Args:
            system: Whether system messages of a conversation are part of the task. A graph that has its own needs none.
        """
        if self.input is not None:
            return Scenario(input=self.input)
        if not self.calls:
            return None
        messages = self.calls[0].messages
        last = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=None)
        if last is None:
            return None
        task = [message for message in messages[: last + 1] if system or message["role"] not in ("system", "developer")]
        value = {"messages": task}
        if self.answer is None:
            return Scenario(input=value)
        return Scenario(id=scenario_id(value), input=value, metadata={"answer": self.answer})

    def demonstrations(self) -> list[Conversation]:
        """The run's conversations: those of which no other with the same tools is a continuation.

        Only answers of this run are imitated, each with the tools of its own call. Others, such as those of an earlier
        turn of the thread, are context (weight 0). What a call that failed had answered by then is left out.

        Raises:
            Unreadable: A conversation cannot be imitated, because it has an image, say.
        """
        calls = [call for call in self.calls if call.answer is not None and call.error is None]
        keys = [[json.dumps(call.tools), *map(_essence, call.messages), _essence(call.answer or {})] for call in calls]
        distinct: dict[str, Conversation] = {}
        for call, key in zip(calls, keys, strict=True):
            if any(other != key and _begins(other, key) for other in keys):
                continue
            own = {len(other) - 1 for other in keys if _begins(key, other)}
            conversation = _conversation([*call.messages, call.answer or {}], call.tools, own)
            distinct.setdefault(digest(conversation), conversation)
        return list(distinct.values())

    def trajectory(self, reward: float | None, feedback: str | None = None) -> Trajectory:
        """The run as the store keeps it. Its completions have no id, so that no step trains them.

        Args:
            reward: The run's reward; None: it has none.
            feedback: Name of the feedback that the reward is.
        """
        last = next((call for call in reversed(self.calls) if call.answer is not None), None)
        output = self.output
        if output is None and last is not None:
            output = {"messages": [*last.messages, last.answer]}
        scenario = self.scenario() or Scenario(id=f"{self.source}-{self.fingerprint[3:15]}", input=None)
        completions = [
            CompletionCall(
                id=None,
                model=call.model,
                messages=call.messages,
                message=call.answer,
                error=call.error,
                node=call.node,
                agent=call.agent,
                path=[name for name in (call.agent, call.node) if name],
                started=call.start_time,
                seconds=call.seconds,
            )
            for call in self.calls
        ]
        return Trajectory(
            id=self.fingerprint,
            scenario=scenario,
            completions=completions,
            tool_calls=self.tool_calls,
            output=output,
            error=self.error,
            reward=reward,
            reward_source=None if reward is None else f"{self.source}: {feedback or next(iter(self.metrics))}",
            metrics=self.metrics,
            imported=self.source,
            graph_id=self.name,
            thread_id=self.thread_id,
            run_id=self.run_id,
            metadata=plain(self.metadata),
            started=self.start_time or time.time(),  # else `prune --keep-days` would delete it
            seconds=self.seconds,
        )


def parse_time(value: object) -> float:
    """Unix time of a time in ISO 8601. Times without a zone are in UTC."""
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def tool_record(tool: str, arguments: Any, output: Any, error: str | None, **facts: Any) -> ToolCall:
    """A tool call of another system's run.

    Args:
        tool: Name of the tool.
        arguments: What it was called with; what is no object becomes `{"input": …}`.
        output: What it returned; None: nothing.
        error: What it raised; None: it did not.
        facts: Other fields of the `ToolCall`.
    """
    return ToolCall(
        tool=tool,
        arguments=arguments if isinstance(arguments, dict) else {} if arguments is None else {"input": arguments},
        result=error or (None if output is None else as_text(output)),
        **facts,
    )


def digest(conversation: Conversation) -> str:
    """The same for the same demonstration."""
    text = json.dumps(conversation.model_dump(mode="json", exclude_none=True), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _essence(message: dict[str, Any]) -> str:
    """The part of a message that all its copies have: role, content, calls. Thoughts and ids of calls may get lost."""
    calls = [
        [call.get("function", {}).get("name"), parse_json(call.get("function", {}).get("arguments"))]
        for call in message.get("tool_calls") or ()
    ]
    return json.dumps([message.get("role"), message.get("content") or "", calls], sort_keys=True)


def _begins(whole: Sequence[str], part: Sequence[str]) -> bool:
    return whole[: len(part)] == part


def _conversation(messages: Messages, tools: list[dict[str, Any]] | None, own: set[int]) -> Conversation:
    """A conversation of which only some answers are imitated.

    Args:
        messages: All of it.
        tools: That the model could call.
        own: Numbers of messages up to and with an answer that is imitated.
    """
    for number in own:
        answer = messages[number - 1]
        if answer.get("content") is None and not answer.get("tool_calls"):
            raise _NOTHING
        if isinstance(answer.get("content"), str) and is_repr(answer["content"]):
            raise _REPR
    with_weights = [
        message if message["role"] != "assistant" or at + 1 in own or "weight" in message else {**message, "weight": 0}
        for at, message in enumerate(messages)
    ]
    try:
        return Conversation(messages=with_weights, tools=tools)
    except ValidationError as error:
        raise Unreadable(
            f"runs that cannot be imitated: {_briefly(explain(error))}", "they are scenarios all the same"
        ) from None


def _briefly(problem: str) -> str:
    """A problem without the number of the message, so that the same ones can be counted."""
    return problem.rpartition("(counted from 0): ")[2] if "(counted from 0)" in problem else problem
