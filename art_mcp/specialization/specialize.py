"""An MCP server in, a better model out: scenarios → before → warm start → training → after, with a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from langchain_core.tools import BaseTool

from art_langgraph.chat_model import ChatART
from art_langgraph.client.client import TrainerClient
from art_langgraph.client.demonstrations import load_conversations
from art_langgraph.judge.ruler import Ruler
from art_langgraph.llm.llm import LLM, Usage, total_cost
from art_langgraph.loop.evaluate import evaluate
from art_langgraph.loop.intervals import wilson
from art_langgraph.loop.rollout import Graph
from art_langgraph.loop.stages import Stages
from art_langgraph.loop.train import StepRecord, train
from art_langgraph.rewards import group_sum
from art_langgraph.trajectory import Trajectory
from art_mcp.client.connect import Server, connect
from art_mcp.client.session import Isolation
from art_mcp.scenarios.generate import generate_scenarios
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.scenarios.tables import Tables
from art_mcp.specialization.agent import SYSTEM, build_agent
from art_mcp.specialization.demonstrations import demonstrations
from art_mcp.specialization.measure import measure_difficulty
from art_mcp.specialization.report import write_report
from art_mcp.specialization.verify import solved, verify
from trainer_server.wire import ConfigError, GRPOConfig, SFTConfig

Agent = Callable[[list[BaseTool]], Graph]
"""A graph that uses these tools, and asks the policy through ChatART."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A version on the held-out scenarios. Runs that could not be scored count in `unscored` alone."""

    version: int
    runs: list[Trajectory]

    @property
    def scored(self) -> list[Trajectory]:
        return [one for one in self.runs if one.reward is not None]

    @property
    def unscored(self) -> int:
        return len(self.runs) - len(self.scored)

    @property
    def successes(self) -> int:
        return sum(map(solved, self.scored))

    @property
    def rate(self) -> float | None:
        """The share of scored runs that solved their scenario; None where none was scored."""
        return self.successes / len(self.scored) if self.scored else None

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the rate."""
        return wilson(self.successes, len(self.scored))

    def by(self, key: Callable[[MCPScenario], Sequence[Any]]) -> dict[Any, tuple[int, int]]:
        """(successes, scored runs) by facts of their scenarios: tools, difficulty."""
        wins: Counter[Any] = Counter()
        all_: Counter[Any] = Counter()
        for one in self.scored:
            for fact in dict.fromkeys(key(MCPScenario.of_scenario(one.scenario))):
                all_[fact] += 1
                wins[fact] += solved(one)
        return {fact: (wins[fact], all_[fact]) for fact in sorted(all_)}

    def __str__(self) -> str:
        if self.rate is None:
            return f"version {self.version}: no run could be scored"
        low, high = self.interval
        left = f", {self.unscored} unscored" if self.unscored else ""
        return f"{self.rate:.3f} (95 %: {low:.3f} to {high:.3f}, {len(self.scored)} runs{left})"


@dataclass(slots=True)
class Specialization:
    """What `specialize` did. before, after: the version that was found and the one that was made, on scenarios that
    neither was trained on. steps: one record per training step. seconds: wall time by stage. usage: of language models
    that wrote scenarios or judged, by role. adapter: directory of the LoRA in PEFT's format, where one was exported."""

    server: str
    server_version: str
    policy: str
    base_model: str
    scenarios: ScenarioSet
    before: Measured
    after: Measured
    """The same as `before` until training has ended."""
    warm_start: dict[str, Any] | None = None
    steps: list[StepRecord] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    adapter: Path | None = None

    @property
    def model(self) -> str:
        """The policy version to use, as the gateway knows it."""
        return f"{self.policy}@{self.after.version}"

    @property
    def cost(self) -> float | None:
        """USD for language models; None where the price of an answer is unknown."""
        return total_cost(self.usage.values())


async def specialize(
    server: Server | str | Sequence[str],
    *,
    policy: str,
    client: TrainerClient | None = None,
    scenarios: ScenarioSet | str | Path | None = None,
    n: int = 96,
    model: str | LLM | None = None,
    difficulty: tuple[int, int] = (1, 5),
    instructions: str | None = None,
    resources: Tables | str | Path | Sequence[str | Path] | None = None,
    allow_destructive: bool = False,
    validation: float = 0.25,
    graph: Agent | None = None,
    system: str = SYSTEM,
    max_tokens: int = 256,
    judge: str | LLM | None = None,
    judge_weight: float = 0.3,
    warm_start: Literal["reference"] | str | Path | None = None,
    sft: SFTConfig | None = None,
    measure: int = 4,
    steps: int = 8,
    groups_per_step: int = 4,
    rollouts: int = 8,
    config: GRPOConfig | Callable[[int], GRPOConfig] | None = None,
    max_concurrency: int = 32,
    timeout: float = 120.0,
    isolation: Isolation = "shared",
    headers: Mapping[str, str] | None = None,
    seed: int = 0,
    output: str | Path | None = None,
    progress: bool = True,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Specialization:
    """Trains a policy to use an MCP server, and measures it before and after on scenarios that it is not trained on.

    server: what `connect` takes, or a connected one. policy: made if it is missing. client: None finds the running
    trainer server. scenarios: a set, or a file of one, instead of generated ones; n, model, difficulty, instructions,
    resources, allow_destructive, validation: see `generate_scenarios`.
    graph: makes your agent of the tools; None takes `build_agent` with `system` and `max_tokens` of an answer.
    judge: adds judge_weight × a score by comparison (RULER) to the verifier's reward. warm_start: imitate first:
    "reference", the references of the training scenarios in the prompt of `build_agent`, or a JSONL file.
    measure: rollouts of each training scenario before training, to leave out what the policy never or always solves;
    0 leaves none out. steps, groups_per_step, rollouts: GRPO steps, scenarios in each, runs of each. timeout: seconds
    for one run. isolation, headers: of the connection. output: directory for the report, the scenarios, the adapter.
    on_stage: is told what begins and what came out.

    Raises ConfigError for settings that cannot be, MCPError for a server that cannot be used, LLMError and ServerError
    as the parts do.
    """
    async with AsyncExitStack() as stack:
        trainer = await stack.enter_async_context(TrainerClient()) if client is None else client
        live = (
            server
            if isinstance(server, Server)
            else await stack.enter_async_context(connect(server, isolation=isolation, headers=headers))
        )
        stages = Stages(on_stage)
        writer = LLM(model) if isinstance(model, str) else model
        ruler = Ruler(judge, seed=seed) if judge is not None else None
        with stages.stage("scenarios", f"inventing tasks for {live.name} {live.version}"):
            if scenarios is None:
                found = await generate_scenarios(
                    live, n, model=writer, difficulty=difficulty, seed=seed, instructions=instructions,
                    resources=resources, allow_destructive=allow_destructive, validation=validation, progress=progress,
                )  # fmt: skip
            else:
                found = scenarios if isinstance(scenarios, ScenarioSet) else ScenarioSet.load(scenarios)
            stages.tell(found.report())
        _enough(found, groups_per_step)
        tools = await live.tools()
        address = trainer.connection
        options: dict[str, Any] = {"base_url": address.url, "api_key": address.api_key, "max_tokens": max_tokens}
        asked = ChatART(policy=policy, **options)
        agent = graph(tools) if graph else build_agent(asked, tools, system)
        known = {one.name: one for one in await trainer.policies()}
        start = known.get(policy) or await trainer.create_policy(policy)

        async def measured(version: int) -> Measured:
            result = await evaluate(
                agent, found.validation, verify(), version=version, max_concurrency=max_concurrency, timeout=timeout,
                progress=progress and f"held out, version {version}",
            )  # fmt: skip
            stages.tell(f"{policy}@{version}, held out: {(one := Measured(version, result.trajectories))}")
            return one

        with stages.stage("before", f"measuring on {len(found.validation)} held-out scenarios"):
            before = await measured(start.latest)
        made = Specialization(live.name, live.version, policy, start.base_model, found, before, before)
        made.seconds = stages.seconds
        made.usage |= {"scenarios": writer.usage} if writer else {}
        made.usage |= {"judge": ruler.usage} if ruler else {}
        if warm_start is not None:
            shown = (
                demonstrations(found.train, tools, system)
                if warm_start == "reference"
                else load_conversations(warm_start)
            )
            with stages.stage("warm start", f"imitating {len(shown)} demonstrations"):
                result = await trainer.sft(policy, shown, sft or SFTConfig(seed=seed), progress=progress)
            made.warm_start = result.metrics
            stages.tell(f"{policy}@{result.version} imitates them")
        training = found.train
        if measure and steps:
            with stages.stage("difficulty", f"{measure} runs of each of {len(training)} training scenarios"):
                rated = await measure_difficulty(
                    agent, ScenarioSet(training), n=measure, max_concurrency=max_concurrency, timeout=timeout,
                    progress=progress and "measuring difficulty",
                )  # fmt: skip
            made.scenarios = replace(found, scenarios=[*rated.scenarios, *found.validation])
            training = rated.keep_learnable().train
            stages.tell(f"{len(training)} of {len(rated)} are solved sometimes: these can be learnt from")
            if len(training) < groups_per_step:
                training = rated.train
                made.notes.append("too few scenarios are solved sometimes: trained on all of them")
        with stages.stage("train", f"{steps} steps of {groups_per_step} scenarios × {rollouts} runs"):
            async for record in train(
                agent, training, policy=policy, reward=verify(), steps=steps, client=trainer, n=rollouts,
                group_reward=group_sum(judge=(judge_weight, ruler)) if ruler else None, config=config, seed=seed,
                groups_per_step=groups_per_step, max_concurrency=max_concurrency, progress=progress,
            ):  # fmt: skip
                made.steps.append(record)
                reward = "none" if record.reward is None else f"{record.reward:.3f}"
                stages.tell(f"step {record.step}: {policy}@{record.result.version}, mean reward {reward}")
        with stages.stage("after", "measuring on the held-out scenarios"):
            made.after = await measured((await trainer.versions(policy))[-1].version)
        if output is not None:
            made.adapter = await trainer.export(policy, made.after.version, Path(output) / "adapter")
            write_report(made, Path(output))
        return made


def _enough(found: ScenarioSet, groups_per_step: int) -> None:
    """Raises ConfigError for a set from which nothing can be learnt or told."""
    if len(found.train) < groups_per_step or not found.validation:
        raise ConfigError(
            f"{len(found.train)} scenarios to train on and {len(found.validation)} held out are too few "
            f"(groups_per_step={groups_per_step}): take a larger n, or give values for arguments with resources="
        )
