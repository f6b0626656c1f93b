"""Scenarios for agents with MCP tools, and their plans: the calls that solve a task, their results, and the checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from art_langgraph.trajectory import Scenario, scenario_id
from art_mcp.canonical import canonical
from art_mcp.scenarios.observe import pick_value
from art_mcp.worlds.change import Change
from trainer_server.wire import ConfigError

Split = Literal["train", "values", "phrasings", "combinations", "foreign"]
"""What a scenario is for: training, one of the held-out sets, or the set of foreign requests.

- values: forms and tools as in training, but values of arguments that never occur in training;
- phrasings: forms that never occur in training;
- combinations: tools that training never combines. Each of them is seen alone in training;
- foreign: requests that the generator did not write, such as those of people. They are measured and reported apart, and
  no split moves them.
"""

HELD_OUT: tuple[Split, ...] = ("values", "phrasings", "combinations")
"""The held-out sets that a split makes, in the order of reports."""

MEASURED: tuple[Split, ...] = (*HELD_OUT, "foreign")
"""All sets that are measured and never trained, in the order of reports."""

Kind = Literal["single", "pair", "chain", "follow_up", "impossible", "talk"]
"""One call; independent calls; calls of which one takes a value from another's result; a second question that refers to
the first one; a task that cannot be done; a message that needs no tool."""

Reply = Literal["result", "refusal", "talk"]
"""What the right answer is: what the calls gave or did; that it cannot be done; an answer without any call."""


class Step(BaseModel):
    """One call of a reference.

    `defaults` and `reads` are filled in when the reference is executed.

    Args:
        tool: Name of the tool.
        arguments: Arguments by name. An argument may be a value of an earlier step's result:
            `{"$step": 0, "path": ["items", 0, "id"]}`. The path leads through the structured content, or through the
            text if that is JSON. An empty path stands for the whole text.
        defaults: Defaults in the schema, by the name of the argument.
        reads: Whether the call only reads, so that it is made for its result. In a world, that is whether it changed
            nothing there; otherwise the tool says so.
        by_result: Whether other arguments are right too, if the call gives the same values: such as another query.
    """

    model_config = ConfigDict(extra="forbid")

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    defaults: dict[str, Any] = Field(default_factory=dict)
    reads: bool = False
    by_result: bool = False

    @property
    def needs(self) -> list[int]:
        """Indexes of the earlier steps whose results this step takes."""
        return [value["$step"] for value in self.arguments.values() if is_reference(value)]


class Observation(BaseModel):
    """The result of a step when the reference was executed, cut to a sample if no later step and no answer needs the
    rest.

    Args:
        text: Text of the result.
        structured: Structured content. None: there was none, or it was too long for the sample.
        is_error: Whether the server answered with an error. So it does in some tasks that cannot be done.
    """

    model_config = ConfigDict(extra="forbid")

    text: str
    structured: Any = None
    is_error: bool = False


class Reading(BaseModel):
    """A value that is another one in each run, such as a time. The answer must mention what the run's own call gave.

    Args:
        step: Index of the step whose result has the value.
        path: Where it is in the result, as in the arguments of a `Step`.
    """

    model_config = ConfigDict(extra="forbid")

    step: int = Field(ge=0)
    path: list[str | int]


class Plan(BaseModel):
    """How a scenario is solved and checked. It is stored as JSON in the scenario's `metadata["mcp"]`.

    Args:
        server: Name of the MCP server.
        difficulty: Difficulty from 1 to 5, as the generator rates it.
        kind: What kind of task it is.
        reply: What the right answer is.
        reference: The calls that solve the task. Empty only where `reply` is "refusal" or "talk".
        observations: The result of each call. Empty: the reference was not executed.
        facts: Values that the answer must mention; both executions of the reference gave them. With neither facts nor
            readings, the answer is checked against the results of the run's own calls.
        readings: Values of the run's own results that the answer must mention.
        about: Names of which a refusal must mention at least one: of what is missing. Empty: any refusal is right.
        answer: A right answer in words: that of the demonstration. Empty: it is made of the facts.
        answers: The right answer to each of several requests, of which `answer` is made. Each request takes one call.
            Empty: there is one request, or they are not known apart.
        requests: The words of each of these requests, as they are in the task's text. Empty: as for `answers`.
        changes: What the reference changed in its world; both executions changed it. Empty: nothing. None: the server
            had no world.
        measured: Share of a policy's rollouts that solved the scenario. None: not measured.
        split: Whether the scenario is trained on, or the set for which it is held out.
        origin: Who wrote the scenario: a model, "schema", or "people".
        phrasing: The form of the task's text in the grammar, or the model that paraphrased it. Empty: not known.
    """

    model_config = ConfigDict(extra="forbid")

    server: str = ""
    difficulty: int = Field(default=1, ge=1, le=5)
    kind: Kind = "single"
    reply: Reply = "result"
    reference: list[Step] = Field(default_factory=list)
    observations: list[Observation] = Field(default_factory=list)
    facts: list[str] = Field(default_factory=list)
    readings: list[Reading] = Field(default_factory=list)
    about: list[str] = Field(default_factory=list)
    answer: str = ""
    answers: list[str] = Field(default_factory=list)
    requests: list[str] = Field(default_factory=list)
    changes: list[Change] | None = None
    measured: float | None = None
    split: Split = "train"
    origin: str = "schema"
    phrasing: str = ""

    @model_validator(mode="after")
    def _fits_its_calls(self) -> Self:
        if not self.reference and self.reply == "result":
            raise ValueError("a task without calls needs a reply of 'refusal' or 'talk'")
        if self.answers and len(self.answers) != len(self.reference):
            raise ValueError(f"{len(self.answers)} `answers` for {len(self.reference)} calls: each is of one call")
        if self.requests and len(self.requests) != len(self.answers):
            raise ValueError(f"{len(self.requests)} `requests` for {len(self.answers)} `answers`")
        return self

    @property
    def executed(self) -> bool:
        """Whether the result of each call is known, and has the values that the answer reads off it. Then the reference
        can be shown. Sets of earlier versions have results that were cut before such a value."""
        return len(self.observations) == len(self.reference) and all(map(self._has, self.readings))

    def _has(self, reading: Reading) -> bool:
        try:
            observation = self.observations[reading.step]
            pick_value(observation.text, observation.structured, reading.path)
        except (LookupError, TypeError):
            return False
        return True

    @property
    def calls(self) -> str:
        """Tools and arguments of the reference as text: equal for tasks that are solved by the same calls."""
        return canonical([[step.tool, step.arguments] for step in self.reference])

    @property
    def asks(self) -> bool:
        """Whether the task asks for information, and not only for an action."""
        needs = {need for step in self.reference for need in step.needs}
        return bool(self.facts or self.readings) or any(
            step.reads for at, step in enumerate(self.reference) if at not in needs
        )


class MCPScenario(Scenario):
    """A scenario with a plan. `rollout`, `gather`, stores and files treat it like any other `Scenario`."""

    @classmethod
    def make(cls, task: str, plan: Plan, history: Sequence[tuple[str, str]] = ()) -> Self:
        """Makes a scenario whose id depends only on the messages.

        Args:
            task: What the user asks.
            plan: How the task is solved and checked.
            history: What was said before: what the user asked and what the assistant answered, for each turn.
        """
        before = [[role, text] for turn in history for role, text in zip(("user", "assistant"), turn, strict=True)]
        graph_input = {"messages": [*before, ["user", task]]}
        return cls(id=scenario_id(graph_input), input=graph_input, metadata={"mcp": plan.model_dump(mode="json")})

    @classmethod
    def of_scenario(cls, scenario: Scenario) -> Self:
        """Converts a scenario that has a plan, and validates the plan.

        Args:
            scenario: A scenario with a plan in `metadata["mcp"]`.

        Raises:
            ConfigError: The scenario has no plan, or the plan is invalid.
        """
        copy = cls(id=scenario.id, input=scenario.input, metadata=scenario.metadata)
        if "mcp" not in copy.metadata:
            raise ConfigError(f"scenario {copy.id} has no plan in metadata['mcp']: it is not one of an MCP server")
        try:
            Plan.model_validate(copy.metadata["mcp"])
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(f"the plan of scenario {copy.id} is wrong at {where}: {first['msg']}") from None
        return copy

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages that the agent gets, in OpenAI's format. Several: the task follows up on an earlier one."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages = [
            (message["role"], message["content"]) if isinstance(message, dict) else message
            for message in self.input["messages"]
        ]
        return [{"role": str(role), "content": str(content)} for role, content in messages]

    @property
    def task(self) -> str:
        """Text of the task: the last message."""
        return self.messages[-1]["content"]

    @property
    def wording(self) -> str:
        """The words of all messages: the same for scenarios that differ in case or punctuation alone."""
        text = " ".join(message["content"] for message in self.messages).casefold()
        return " ".join("".join(char if char.isalnum() else " " for char in text).split())

    @property
    def plan(self) -> Plan:
        """How the scenario is solved and checked. Each access parses the metadata and gives a new object."""
        return Plan.model_validate(self.metadata["mcp"])

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the tools in the reference, in order."""
        return tuple(step["tool"] for step in self.metadata["mcp"]["reference"])

    def with_plan(self, **changes: Any) -> Self:
        """Returns the same task with a changed plan.

        Args:
            **changes: Fields of the plan with their new values.
        """
        plan = self.plan.model_copy(update=changes)
        return self.model_copy(update={"metadata": {**self.metadata, "mcp": plan.model_dump(mode="json")}})


def is_reference(value: Any) -> bool:
    """Whether an argument is a reference to a value of an earlier result: `{"$step": 0, "path": [...]}`."""
    return isinstance(value, dict) and set(value) == {"$step", "path"}
