"""AutoRL: trains a policy from a description of its task. A model invents scenarios and judges the runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from art_langgraph.auto_rl.inputs import input_schema, invent
from art_langgraph.auto_rl.options import AutoRLPlainOptions
from art_langgraph.client.client import TrainerClient
from art_langgraph.judge.ruler import RUBRIC, Ruler
from art_langgraph.llm.llm import LLM, Model, Usage, total_cost
from art_langgraph.loop.comparison import VersionComparison, compare_versions
from art_langgraph.loop.failures import RolloutsFailed
from art_langgraph.loop.options import SizeOptions, keywords_of, values_of
from art_langgraph.loop.rollout import Graph, ScenarioLike
from art_langgraph.loop.sampling.dead_groups import DeadGroups, dead_groups
from art_langgraph.loop.train import train
from art_langgraph.loop.watch.held_out import task_id
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.progress import Stages
from art_langgraph.trajectory import Scenario, TrajectoryGroup
from trainer_server.wire import ConfigError, GRPOConfig

_RUBRIC = "What the agent is for:\n{task}\n\n{rubric}"


@dataclass(slots=True, kw_only=True)
class AutoRLReport:
    """Result of `autorl`."""

    task: str
    """The description of the task."""
    training: list[Scenario]
    """Scenarios that the policy was trained on."""
    held_out: list[Scenario]
    """Held-out scenarios, on which versions were compared."""
    comparison: VersionComparison
    """First and last version on the held-out scenarios. Where all runs of one failed, nothing is compared, and a note
    says why."""
    steps: list[StepRecord]
    """A record for each training step."""
    usage: dict[str, Usage]
    """Calls, tokens and cost of the `judge`, and of the `writer` where it is another model."""
    seconds: dict[str, float]
    """Wall time by stage."""
    notes: list[str] = field(default_factory=list)
    """Remarks for the report, such as how many scenarios were invented."""

    @property
    def model(self) -> str:
        """The policy version to use, as the gateway names it: `agent@8`."""
        return f"{self.comparison.policy}@{self.comparison.versions[1]}"

    @property
    def cost(self) -> float | None:
        """Cost in USD; None where the price of an answer is unknown."""
        return total_cost(self.usage.values())

    @property
    def dead_groups(self) -> DeadGroups:
        """Scenarios that never taught anything in the training, why, and what to do."""
        return dead_groups(group for record in self.steps for group in record.groups)

    def markdown(self) -> str:
        """The report as Markdown."""
        learnt = sum(not record.result.metrics.get("skipped") for record in self.steps)
        lines = [
            f"# {self.model}",
            "",
            self.task,
            "",
            f"- held-out scenarios: {self.comparison}",
            f"- {len(self.training)} scenarios to train on, {len(self.held_out)} held out",
            f"- {learnt} of {len(self.steps)} steps learnt something",
            *(f"- {role}: {usage}" for role, usage in self.usage.items()),
            f"- seconds: {', '.join(f'{stage} {took:.0f}' for stage, took in self.seconds.items())}",
            *([f"- training: {self.steps[-1].spent}"] if self.steps and self.steps[-1].spent else []),
            *(f"- {note}" for note in self.notes),
            "",
            "| step | version | mean score | unscored runs |",
            "|---|---|---|---|",
        ]
        for record in self.steps:
            runs = [run for group in record.groups for run in group.trajectories]
            scores = [run.reward for run in runs if run.reward is not None]
            mean = f"{sum(scores) / len(scores):.3f}" if scores else ""
            lines.append(f"| {record.step} | {record.result.version} | {mean} | {len(runs) - len(scores)} |")
        lines += ["", "## Groups that taught nothing", "", str(self.dead_groups)]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class AutoRLOptions(AutoRLPlainOptions):
    """Arguments of `autorl`.

    Args:
        task: What the agent is for, in plain words.
        graph: The agent; it asks `ChatART(policy=policy)`.
        policy: Policy to train; created if it is missing.
        judge: Model that compares runs: a litellm name ("provider/name"), an `LLM`, or a LangChain chat model.
        client: The trainer server.
        writer: Model that invents scenarios; None: the judge.
        scenarios: How many to invent, or scenarios of your own, of which repeats are left out.
        examples: Scenarios to invent more of. None of them is repeated.
        schema: JSON schema of a scenario's input; None: the graph's own, or messages of a user.
        rubric: What a good run is, besides doing the task.
        held_out: Share of the scenarios that is never trained on, from 0 to 1. Versions are compared on it.
        votes: How often the judge is asked about a scenario.
        config: Settings of every step, or a function of its number.
        temperature: Sampling temperature of the runs to train on.
        max_concurrency: Runs at once.
        progress: Show bars on the terminal.
        on_stage: Called with the name of each stage when it begins, and with the text of each step. None: nothing is.
    """

    task: str = field(kw_only=False)
    graph: Graph
    policy: str
    judge: Model
    client: TrainerClient
    writer: Model | None = None
    scenarios: int | Sequence[ScenarioLike] = 32
    examples: Sequence[ScenarioLike] = ()
    schema: dict[str, object] | None = None
    rubric: str | None = None
    held_out: float = 0.25
    votes: int = 1
    config: GRPOConfig | Callable[[int], GRPOConfig] | None = None
    temperature: float = 1.0
    max_concurrency: int = 16
    progress: bool = True
    on_stage: Callable[[str], None] | None = None


@keywords_of(AutoRLOptions)
async def autorl(options: AutoRLOptions) -> AutoRLReport:
    """Trains a policy from a description of its task: invents scenarios, holds some out, trains with RULER, compares.

    Returns:
        What was done, with the comparison of the first and the last version. A comparison that fails is a note.

    Raises:
        ConfigError: There are too few scenarios.
        LLMError: The writer gave no usable scenario.
        RolloutsFailed: As `train`. The versions that were made by then stay.
    """
    policy, client = options.policy, options.client
    judge = LLM.of(options.judge)
    writer = judge if options.writer is None else LLM.of(options.writer)
    stages, notes = Stages(options.on_stage or (lambda stage: None)), list[str]()
    if policy not in {record.name for record in await client.policies()}:
        await client.create_policy(policy)
    first = (await client.versions(policy))[-1].version
    scenarios = await _scenarios(options, writer, stages, notes)
    training, held_out = _split(scenarios, options.held_out, options.groups_per_step, options.seed)
    rubric = _RUBRIC.format(task=options.task, rubric=options.rubric or RUBRIC)
    ruler = Ruler(judge, rubric, votes=options.votes, seed=options.seed)
    records = []
    with stages.stage("train", f"{policy} on {len(training)} scenarios, {options.steps} steps"):
        async for record in train(
            options.graph,
            training,
            policy=policy,
            group_reward=ruler,
            client=client,
            config=options.config,
            temperature=options.temperature,
            max_concurrency=options.max_concurrency,
            seed=options.seed,
            progress=options.progress,
            **values_of(options, SizeOptions),
        ):
            records.append(record)
            stages.on_stage(str(record))
    last = records[-1].result.version if records else first
    with stages.stage("compare", f"versions {first} and {last} on {len(held_out)} held-out scenarios"):
        try:
            comparison = await compare_versions(
                options.graph,
                held_out,
                ruler,
                policy=policy,
                versions=(first, last),
                max_concurrency=options.max_concurrency,
                progress=options.progress,
            )
        except RolloutsFailed as error:  # the training is done: its report must not be lost with the comparison
            notes.append(f"the versions could not be compared: {error}")
            comparison = VersionComparison(policy, (first, last), TrajectoryGroup.by_scenario(error.trajectories))
    return AutoRLReport(
        task=options.task,
        training=training,
        held_out=held_out,
        comparison=comparison,
        steps=records,
        usage={"judge": judge.usage} | ({"writer": writer.usage} if writer is not judge else {}),
        seconds=stages.seconds,
        notes=notes,
    )


async def _scenarios(options: AutoRLOptions, writer: LLM, stages: Stages, notes: list[str]) -> list[Scenario]:
    """The scenarios of the options without repeats, or as many invented ones. Notes for the report are added."""
    if not isinstance(options.scenarios, int):
        scenarios = Scenario.each(options.scenarios)
        distinct: dict[str, Scenario] = {}
        for scenario in scenarios:
            distinct.setdefault(task_id(scenario), scenario)
        if repeats := len(scenarios) - len(distinct):
            notes.append(f"{repeats} of {len(scenarios)} scenarios repeat others, and were left out")
        return list(distinct.values())
    count = options.scenarios
    with stages.stage("scenarios", f"inventing {count} of them"):
        invention = await invent(
            options.task,
            count,
            writer,
            schema=options.schema or input_schema(options.graph),
            examples=[Scenario.of(example) for example in options.examples],
            instructions=options.instructions,
            seed=options.seed,
            progress=options.progress,
        )
    notes.append(
        f"{len(invention.scenarios)} of {count} scenarios after {invention.rounds} rounds, "
        f"{invention.repeat_count} repeated"
    )
    return invention.scenarios


def _split(
    scenarios: Sequence[Scenario], share: float, groups_per_step: int, seed: int
) -> tuple[list[Scenario], list[Scenario]]:
    """Splits scenarios into training and held-out scenarios. Raises ConfigError when too few are left to train on."""
    order = random.Random(f"split-{seed}").sample(list(scenarios), len(scenarios))
    count = max(round(share * len(order)), 1)
    training, held_out = order[count:], order[:count]
    if len(training) < groups_per_step:
        raise ConfigError(
            f"{len(scenarios)} scenarios leave {len(training)} to train on, fewer than "
            f"groups_per_step={groups_per_step}: take more scenarios, or a smaller groups_per_step (--groups); "
            "examples= or instructions= help the model to vary them"
        )
    return training, held_out
