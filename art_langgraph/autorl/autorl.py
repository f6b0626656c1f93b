"""AutoRL: a description of a task and a graph in, a better policy out. An LLM invents inputs and judges the runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from art_langgraph.autorl.inputs import input_schema, invent
from art_langgraph.client.client import TrainerClient
from art_langgraph.judge.ruler import RUBRIC, Ruler
from art_langgraph.llm.llm import LLM, Usage, total_cost
from art_langgraph.loop.comparison import VersionComparison, compare_versions
from art_langgraph.loop.rollout import Graph, ScenarioLike
from art_langgraph.loop.stages import Stages
from art_langgraph.loop.train import StepRecord, train
from art_langgraph.trajectory import Scenario
from trainer_server.wire import ConfigError, GRPOConfig, LLMError

_RUBRIC = "What the agent is for:\n{task}\n\n{rubric}"


@dataclass(slots=True)
class AutoRLReport:
    """What `autorl` did. comparison: first and last version on held-out inputs. steps: one record per training step.
    usage: what was asked of the judge and of the writer, once each; seconds: wall time by stage."""

    task: str
    training: list[Scenario]
    held_out: list[Scenario]
    comparison: VersionComparison
    steps: list[StepRecord]
    usage: dict[str, Usage]
    seconds: dict[str, float]
    notes: list[str] = field(default_factory=list)

    @property
    def adapter(self) -> str:
        """The policy version to use, as the gateway knows it."""
        return f"{self.comparison.policy}@{self.comparison.versions[1]}"

    @property
    def cost(self) -> float | None:
        """USD; None where the price of an answer is unknown."""
        return total_cost(self.usage.values())

    def markdown(self) -> str:
        """The report for people."""
        learnt = sum(not one.result.metrics.get("skipped") for one in self.steps)
        lines = [
            f"# {self.adapter}", "", self.task, "",
            f"- held out: {self.comparison}",
            f"- {len(self.training)} inputs to train on, {len(self.held_out)} held out",
            f"- {learnt} of {len(self.steps)} steps learnt something",
            *(f"- {who}: {usage}" for who, usage in self.usage.items()),
            f"- seconds: {', '.join(f'{stage} {took:.0f}' for stage, took in self.seconds.items())}",
            *(f"- {note}" for note in self.notes), "",
            "| step | version | mean score | unscored runs |", "|---|---|---|---|",
        ]  # fmt: skip
        for one in self.steps:
            runs = [run for group in one.groups for run in group.trajectories]
            scored = [run.reward for run in runs if run.reward is not None]
            mean = f"{sum(scored) / len(scored):.3f}" if scored else ""
            lines.append(f"| {one.step} | {one.result.version} | {mean} | {len(runs) - len(scored)} |")
        return "\n".join(lines) + "\n"


async def autorl(
    task: str,
    *,
    graph: Graph,
    policy: str,
    judge: str | LLM,
    client: TrainerClient,
    writer: str | LLM | None = None,
    scenarios: Sequence[ScenarioLike] | None = None,
    examples: Sequence[ScenarioLike] = (),
    schema: dict[str, object] | None = None,
    instructions: str | None = None,
    rubric: str | None = None,
    inputs: int = 32,
    held_out: float = 0.25,
    steps: int = 8,
    groups_per_step: int = 4,
    n: int = 8,
    votes: int = 1,
    config: GRPOConfig | Callable[[int], GRPOConfig] | None = None,
    temperature: float = 1.0,
    max_concurrency: int = 16,
    seed: int = 0,
    progress: bool = True,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> AutoRLReport:
    """Trains a policy on a graph from a description alone: invents inputs, splits them, trains with RULER, compares.

    graph: asks `policy` through ChatART. judge, writer: models, or LLMs; the judge writes the inputs too unless a
    writer is named. scenarios: inputs of your own, instead of invented ones. examples: inputs to invent more of.
    schema: of an input; None: what the graph says, else messages of a user. rubric: what is good, besides the task.
    inputs: how many to invent; held_out: the share of them that is never trained on. votes: of the judge, per group.
    n: runs of an input in a step. on_stage: is told what begins.

    The policy is created if it is missing. Raises ConfigError for too few inputs and a graph that does not ask the
    policy, LLMError as soon as the judge fails on all groups of a step; the versions made until then stay.
    """
    judging = LLM(judge) if isinstance(judge, str) else judge
    writing = judging if writer is None else LLM(writer) if isinstance(writer, str) else writer
    notes: list[str] = []
    stages = Stages(on_stage)
    if policy not in {one.name for one in await client.policies()}:
        await client.create_policy(policy)
    first = (await client.versions(policy))[-1].version
    if scenarios is None:
        with stages.stage("inputs", f"inventing {inputs} of them"):
            wanted = schema or input_schema(graph)
            invented = await invent(
                task, inputs, writing, schema=wanted, examples=[Scenario.of(one) for one in examples],
                instructions=instructions, seed=seed, progress=progress,
            )  # fmt: skip
        chosen = invented.scenarios
        notes.append(f"{len(chosen)} of {inputs} inputs after {invented.rounds} rounds, {invented.repeated} repeated")
    else:
        chosen = [Scenario.of(one) for one in scenarios]
    training, held = _split(chosen, held_out, groups_per_step, seed)
    ruler = Ruler(judging, _RUBRIC.format(task=task, rubric=rubric or RUBRIC), votes=votes, seed=seed)
    records = []
    with stages.stage("train", f"{policy} on {len(training)} inputs, {steps} steps"):
        async for record in train(
            graph, training, policy=policy, group_reward=ruler, steps=steps, client=client, n=n, config=config,
            groups_per_step=groups_per_step, temperature=temperature, max_concurrency=max_concurrency, seed=seed,
            progress=progress,
        ):  # fmt: skip
            _check(record, policy)
            records.append(record)
            stages.tell(f"step {record.step}: version {record.result.version}, mean score {record.reward}")
    last = records[-1].result.version if records else first
    with stages.stage("compare", f"versions {first} and {last} on {len(held)} held-out inputs"):
        comparison = await compare_versions(
            graph,
            held,
            ruler,
            policy=policy,
            versions=(first, last),
            max_concurrency=max_concurrency,
            progress=progress,
        )
    usage = {"judge": judging.usage} | ({"writer": writing.usage} if writing is not judging else {})
    return AutoRLReport(task, training, held, comparison, records, usage, stages.seconds, notes)


def _split(
    scenarios: Sequence[Scenario], share: float, groups_per_step: int, seed: int
) -> tuple[list[Scenario], list[Scenario]]:
    """Training and held-out inputs, by the seed alone. Raises ConfigError when either would be too few."""
    order = random.Random(f"split-{seed}").sample(list(scenarios), len(scenarios))
    count = max(round(share * len(order)), 1)
    training, held = order[count:], order[:count]
    if len(training) < groups_per_step:
        raise ConfigError(
            f"{len(scenarios)} inputs leave {len(training)} to train on, fewer than groups_per_step={groups_per_step}: "
            "take more inputs, or give examples= or instructions= that help the model to vary them"
        )
    return training, held


def _check(record: StepRecord, policy: str) -> None:
    """A step from which nothing can be learnt for a reason that will not pass ends the training."""
    runs = [run for group in record.groups for run in group.trajectories]
    if runs and not any(call.policy == policy for run in runs for call in run.completions):
        error = next((f"; it raised: {run.error}" for run in runs if run.error), "")
        raise ConfigError(f"the graph never asked the policy {policy!r}: give it ChatART(policy={policy!r}){error}")
    if runs and all(run.reward is None for run in runs):
        raise LLMError(f"step {record.step}: no run could be scored: {runs[0].reward_error}", kind="server")
