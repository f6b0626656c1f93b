"""A task for an agent with MCP tools, and its plan: the calls that solve it, what they gave, what is checked."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from art_langgraph.trajectory import Scenario
from trainer_server.wire import ConfigError

Split = Literal["train", "validation"]


class Step(BaseModel):
    """One call of a reference.

    arguments: an argument may be a value of an earlier step's result: `{"$step": 0, "path": ["items", 0, "id"]}`; the
    path leads through the structured content, or through the text where that is JSON; an empty path is the whole text.
    defaults: what the schema fills in for arguments that are left out. reads: whether the tool only looks, so that the
    call is made for what it gives. Both are filled in when the reference is executed.
    """

    model_config = ConfigDict(extra="forbid")

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    defaults: dict[str, Any] = Field(default_factory=dict)
    reads: bool = False

    @property
    def needs(self) -> list[int]:
        """Earlier steps whose results it takes."""
        return [value["$step"] for value in self.arguments.values() if is_reference(value)]


class Observation(BaseModel):
    """What a step gave when the reference was executed; text and structured content are cut to a sample."""

    model_config = ConfigDict(extra="forbid")

    text: str
    structured: Any = None


class Plan(BaseModel):
    """How a scenario is solved, and how it is checked. Kept as JSON in the scenario's `metadata["mcp"]`.

    server: name of the MCP server. difficulty: 1 to 5, as the generator says. reference: the calls that solve it.
    observations: what they gave, one for each; empty before execution. facts: what the answer must mention, each seen
    in two executions; empty where nothing was stable: then the answer is held to what its own run's calls gave.
    measured: the share of a policy's rollouts that solved it; None: not measured. origin: who wrote it.
    """

    model_config = ConfigDict(extra="forbid")

    server: str = ""
    difficulty: int = Field(default=1, ge=1, le=5)
    reference: list[Step] = Field(min_length=1)
    observations: list[Observation] = Field(default_factory=list)
    facts: list[str] = Field(default_factory=list)
    measured: float | None = None
    split: Split = "train"
    origin: str = "schema"

    @property
    def asks(self) -> bool:
        """Whether the task wants to be told something, rather than only to have something done."""
        taken = {need for step in self.reference for need in step.needs}
        return bool(self.facts) or any(step.reads for at, step in enumerate(self.reference) if at not in taken)


class MCPScenario(Scenario):
    """A task with a plan. A `Scenario` like any other for `rollout`, `gather`, stores and files."""

    @classmethod
    def make(cls, task: str, plan: Plan) -> Self:
        """A scenario whose id depends on its task alone.

        Args:
            task: What the user asks.
            plan: How it is solved and checked.
        """
        return cls(input={"messages": [["user", task]]}, metadata={"mcp": plan.model_dump(mode="json")})

    @classmethod
    def of_scenario(cls, scenario: Scenario) -> Self:
        """The same scenario with its plan checked.

        Args:
            scenario: One with a plan in `metadata["mcp"]`.

        Raises:
            ConfigError: It has no plan, or a wrong one.
        """
        found = cls(id=scenario.id, input=scenario.input, metadata=scenario.metadata)
        if "mcp" not in found.metadata:
            raise ConfigError(f"scenario {found.id} has no plan in metadata['mcp']: it is not one of an MCP server")
        try:
            Plan.model_validate(found.metadata["mcp"])
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(f"the plan of scenario {found.id} is wrong at {where}: {first['msg']}") from None
        return found

    @property
    def task(self) -> str:
        if isinstance(self.input, str):
            return self.input
        message = self.input["messages"][0]
        return str(message["content"] if isinstance(message, dict) else message[1])

    @property
    def plan(self) -> Plan:
        return Plan.model_validate(self.metadata["mcp"])

    @property
    def tools(self) -> tuple[str, ...]:
        """Tools of its reference, in order."""
        return tuple(step["tool"] for step in self.metadata["mcp"]["reference"])

    def with_plan(self, **changes: Any) -> Self:
        """The same task with another plan.

        Args:
            **changes: Fields of the plan with their new values.
        """
        plan = self.plan.model_copy(update=changes)
        return self.model_copy(update={"metadata": {**self.metadata, "mcp": plan.model_dump(mode="json")}})


def is_reference(value: Any) -> bool:
    """Whether an argument stands for a value of an earlier result."""
    return isinstance(value, dict) and set(value) == {"$step", "path"}
