"""RunContext: what the stages of a specialization share: options, connections, the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from art_langgraph.client.client import TrainerClient
from art_langgraph.costs import GPUPrice
from art_langgraph.judge.ruler import Ruler
from art_langgraph.llm.llm import LLM, Model, Usage
from art_langgraph.llm.trainer_model import POLICY, TrainerModel
from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.rollout import Graph
from art_langgraph.trajectory import TrajectoryGroup
from art_mcp.client.connect import Server
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.agent import Toolbox
from art_mcp.specialization.calls import schemas_of
from art_mcp.specialization.demonstrations import put_aside
from art_mcp.specialization.measurement import Measurement, Measurer, interleave_sets
from art_mcp.specialization.report.write import write_report
from art_mcp.specialization.settings import SpecializeOptions
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.stage_runner import StageRunner
from trainer_server.wire import Policy


@dataclass(slots=True, kw_only=True)
class RunContext:
    """What the stages of a run share.

    Args:
        options: The options. A stage may change those of the stages after it.
        server: The MCP server.
        trainer: The trainer server.
        policy: The policy, as it was before.
        runner: The time, the journal, and the report.

    Attributes:
        outcome: The outcome, which each stage adds to. Like what follows, it is there when there are scenarios.
        toolbox: The tools of the agent.
        agent: The agent.
        held_out: All held-out scenarios, in the order in which they are measured.
        training: The scenarios to train on.
        selection: Those of the training set that were put aside.
        measurer: Measures versions.
        ruler: Compares runs. None: nobody does.
        imitated_ids: Ids of the scenarios that the warm start has imitated.
        difficulty_groups: Runs that measured the difficulty.
        selection_evaluations: Evaluations on the selection scenarios, by version.
    """

    options: SpecializeOptions
    server: Server
    trainer: TrainerClient
    policy: Policy
    runner: StageRunner
    outcome: Specialization = field(init=False)
    toolbox: Toolbox = field(init=False)
    agent: Graph = field(init=False)
    held_out: list[MCPScenario] = field(init=False)
    training: list[MCPScenario] = field(init=False)
    selection: list[MCPScenario] = field(init=False)
    measurer: Measurer = field(init=False)
    ruler: Ruler | None = field(init=False)
    imitated_ids: list[str] = field(default_factory=list)
    difficulty_groups: Sequence[TrajectoryGroup] = ()
    selection_evaluations: dict[int, Evaluation] = field(default_factory=dict)
    _earlier_usage: dict[str, Usage] = field(init=False)

    def __post_init__(self) -> None:
        generation, judge = self.options.generation, self.options.training.judge
        if generation.model is not None:  # one object, which counts its usage
            generation = replace(generation, model=self._language_model(generation.model))
        if generation.paraphrase is not None:
            generation = replace(generation, paraphrase=self._language_model(generation.paraphrase))
        self.options = replace(self.options, generation=generation)
        self.ruler = None if judge is None else Ruler(judge, seed=self.options.seed)
        self.measurer = Measurer(self.options.runs, self.options.progress)
        journal = self.runner.directory.journal
        self._earlier_usage = journal.last_usage
        journal.usage = self.usage

    def _language_model(self, model: Model) -> LLM:
        """A model that writes. POLICY is the base model of this run's trainer server."""
        return TrainerModel(self.trainer.connection, self.policy.base_model) if model == POLICY else LLM.of(model)

    def usage(self) -> dict[str, Usage]:
        """Usage of language models until now, by what they were asked for, that of earlier processes included."""
        usage = {"judge": self.ruler.usage} if self.ruler else {}
        if isinstance(writer := self.options.generation.model, LLM):
            usage = {"scenarios": writer.usage, **usage}
        return {name: self._earlier_usage.get(name, Usage()) + now for name, now in usage.items()}

    async def begin(self, scenarios: ScenarioSet) -> None:
        """Makes of the scenarios what all other stages need: the outcome, the tools, the agent.

        Args:
            scenarios: All scenarios, divided into sets.

        Raises:
            ConfigError: There are too few, or one needs a tool that the agent does not get.
        """
        options = self.options
        options.check_sizes(scenarios)
        self.toolbox = await Toolbox.of(self.server, scenarios, options.generation.allow_destructive)
        self.outcome = Specialization(
            server=self.server.name,
            server_version=self.server.version,
            policy=options.policy,
            base_model=self.policy.base_model,
            scenarios=scenarios,
            schemas=schemas_of(self.toolbox.tools),
            version=self.policy.latest,
            price=GPUPrice.of(await self.trainer.health()),
            notes=self.runner.notes,
        )
        left_out = self.toolbox.left_out
        if left_out and not any(note.startswith(left_out) for note in scenarios.notes):
            self.note("tools", left_out)  # the report of generated scenarios says it already
        tools = self.toolbox.tools
        own = options.graph
        self.agent = own(tools) if own else self.toolbox.agent(self.trainer, options.policy, options.runs)
        self.divide_scenarios()
        self.runner.report = self.report

    def divide_scenarios(self) -> None:
        """Divides the scenarios of the outcome by what they are for: to measure, to train, to choose a version."""
        scenarios, seed = self.outcome.scenarios, self.options.seed
        self.held_out = interleave_sets(scenarios.held_out_sets, seed)
        self.training, self.selection = put_aside(scenarios.train, seed)
        if len(self.training) < self.options.training.groups_per_step:
            self.training, self.selection = scenarios.train, []

    @property
    def before_training(self) -> Measurement:
        """The measurement of the version with which reinforcement learning begins."""
        return self.outcome.measurements.get("after_sft") or self.outcome.measurements["before"]

    def note(self, about: str, text: str) -> None:
        """Tells something now, and in the report."""
        self.runner.remark(about, text)
        self.options.on_stage(text)

    def report(self) -> None:
        """Writes the report of what is known so far."""
        outcome, journal = self.outcome, self.runner.directory.journal
        outcome.seconds, outcome.usage = journal.seconds, self.usage()
        outcome.tokens, outcome.runs = journal.tokens, journal.runs
        write_report(outcome, self.runner.directory)
