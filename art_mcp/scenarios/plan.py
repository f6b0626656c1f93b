"""Scenarios for agents with MCP tools, and their plans: the calls that solve a task, their results, and the checks."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from art_langgraph.trajectory import Scenario, scenario_id
from art_mcp.worlds.change import Change
from trainer_server.wire import ConfigError

Split = Literal["train", "validation"]


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
    """

    model_config = ConfigDict(extra="forbid")

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    defaults: dict[str, Any] = Field(default_factory=dict)
    reads: bool = False

    @property
    def needs(self) -> list[int]:
        """Indexes of the earlier steps whose results this step takes."""
        return [value["$step"] for value in self.arguments.values() if is_reference(value)]


class Observation(BaseModel):
    """The result of a step when the reference was executed, cut to a sample if no later step needs it.

    Args:
        text: Text of the result.
        structured: Structured content. None: there was none, or it was too long for the sample.
    """

    model_config = ConfigDict(extra="forbid")

    text: str
    structured: Any = None


class Plan(BaseModel):
    """How a scenario is solved and checked. It is stored as JSON in the scenario's `metadata["mcp"]`.

    Args:
        server: Name of the MCP server.
        difficulty: Difficulty from 1 to 5, as the generator rates it.
        reference: The calls that solve the task.
        observations: The result of each call. Empty: the reference was not executed.
        facts: Values that the answer must mention; both executions of the reference gave them. Empty: no value was
            stable. The answer is then checked against the results of the run's own calls.
        changes: What the reference changed in its world; both executions changed it. Empty: nothing. None: the server
            had no world.
        measured: Share of a policy's rollouts that solved the scenario. None: not measured.
        split: Whether the scenario is trained on or held out.
        origin: The model that wrote the scenario, or "schema".
    """

    model_config = ConfigDict(extra="forbid")

    server: str = ""
    difficulty: int = Field(default=1, ge=1, le=5)
    reference: list[Step] = Field(min_length=1)
    observations: list[Observation] = Field(default_factory=list)
    facts: list[str] = Field(default_factory=list)
    changes: list[Change] | None = None
    measured: float | None = None
    split: Split = "train"
    origin: str = "schema"

    @property
    def asks(self) -> bool:
        """Whether the task asks for information, and not only for an action."""
        taken = {need for step in self.reference for need in step.needs}
        return bool(self.facts) or any(step.reads for at, step in enumerate(self.reference) if at not in taken)


class MCPScenario(Scenario):
    """A scenario with a plan. `rollout`, `gather`, stores and files treat it like any other `Scenario`."""

    @classmethod
    def make(cls, task: str, plan: Plan) -> Self:
        """Makes a scenario whose id depends only on the task.

        Args:
            task: What the user asks.
            plan: How the task is solved and checked.
        """
        given = {"messages": [["user", task]]}
        return cls(id=scenario_id(given), input=given, metadata={"mcp": plan.model_dump(mode="json")})

    @classmethod
    def of_scenario(cls, scenario: Scenario) -> Self:
        """Converts a scenario that has a plan, and validates the plan.

        Args:
            scenario: A scenario with a plan in `metadata["mcp"]`.

        Raises:
            ConfigError: The scenario has no plan, or the plan is invalid.
        """
        converted = cls(id=scenario.id, input=scenario.input, metadata=scenario.metadata)
        if "mcp" not in converted.metadata:
            raise ConfigError(f"scenario {converted.id} has no plan in metadata['mcp']: it is not one of an MCP server")
        try:
            Plan.model_validate(converted.metadata["mcp"])
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(f"the plan of scenario {converted.id} is wrong at {where}: {first['msg']}") from None
        return converted

    @property
    def task(self) -> str:
        """Text of the task: the first message."""
        if isinstance(self.input, str):
            return self.input
        message = self.input["messages"][0]
        return str(message["content"] if isinstance(message, dict) else message[1])

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
