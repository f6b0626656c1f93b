"""Trains a policy for an MCP server: scenarios → before → warm start → difficulty → training → after → report."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from langchain_core.tools import BaseTool

from art_langgraph.chat_model import ChatART
from art_langgraph.client.client import TrainerClient
from art_langgraph.client.demonstrations import load_conversations
from art_langgraph.judge.ruler import Ruler
from art_langgraph.llm.llm import LLM
from art_langgraph.loop.evaluate import Evaluation, evaluate
from art_langgraph.loop.failures import RolloutsFailed, check_rewards, runs_of
from art_langgraph.loop.rollout import Graph, gather
from art_langgraph.loop.train import train
from art_langgraph.loop.watch.held_out import HeldOut
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.loop.watch.stopping import Plateau
from art_langgraph.progress import Stages
from art_langgraph.rewards import group_sum
from art_langgraph.trajectory import TrajectoryGroup
from art_mcp.client.connect import Server, connect
from art_mcp.client.reset import Reset
from art_mcp.scenarios.catalog import REMEDY, CatalogTool, withheld
from art_mcp.scenarios.generate import generate_scenarios
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.agent import build_agent
from art_mcp.specialization.demonstrations import demonstrations
from art_mcp.specialization.measure import rated
from art_mcp.specialization.report import write_report
from art_mcp.specialization.settings import GenerationSettings, RunSettings, TrainingSettings, WarmStart
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.verify import solved, verify
from art_mcp.worlds.place import Worlds
from trainer_server.wire import ConfigError, Conversation, Policy, SFTConfig

TEMPERATURE = 1.0
"""Sampling temperature of the runs that are trained on, and of those that measure difficulty."""
Agent = Callable[[list[BaseTool]], Graph]
"""Takes the server's tools and returns a graph that uses them and asks the policy through ChatART."""


async def specialize(
    server: Server | str | Sequence[str],
    *,
    policy: str,
    client: TrainerClient | None = None,
    scenarios: int | ScenarioSet | str | Path = 96,
    graph: Agent | None = None,
    generation: GenerationSettings = GenerationSettings(),
    warm_start: WarmStart | Literal["reference"] | str | Path | None = None,
    training: TrainingSettings = TrainingSettings(),
    runs: RunSettings = RunSettings(),
    seed: int = 0,
    output: str | Path | None = None,
    progress: bool = True,
    on_stage: Callable[[str], None] = lambda stage: None,
    worlds: Worlds | None = None,
    reset: Reset | None = None,
) -> Specialization:
    """Trains a policy to use an MCP server, and measures it before and after on held-out scenarios.

    Args:
        server: A connected server, or what `connect` takes.
        policy: Name of the policy. It is created if it is missing.
        client: Client of the trainer server. None finds the running server.
        scenarios: Number of scenarios to generate, or a set of scenarios, or a JSONL file of `ScenarioSet.save`.
        graph: Makes your agent from the server's tools. None takes `build_agent`.
        generation: How scenarios are generated.
        warm_start: Conversations that the policy imitates before training: "reference" (the references of the training
            scenarios, with the prompt of `build_agent`), a JSONL file of conversations, or a WarmStart, which also has
            an SFTConfig. None: no warm start.
        training: How the policy is trained.
        runs: How the agent is run.
        seed: Seed of the scenarios, their split, the order of training, and the warm start.
        output: Directory for the report, the scenarios and the adapter. None writes nothing.
        progress: Whether to show progress bars on a terminal.
        on_stage: Called with a line of text when a stage begins, and with its results.
        worlds: What the server works on, as `connect` takes it: each run gets a copy, all tools may be called, and the
            reward compares what a run changed with what it should have changed. A connected server has it.
        reset: Resets the server before each run, as `connect` takes it. A connected server has it.

    Returns:
        The scenarios, the measurements and the records of training.

    Raises:
        ConfigError: A setting is invalid, or there are too few scenarios.
        MCPError: The server cannot be used.
        LLMError: The model that writes scenarios failed before any scenario was kept, or no run could be judged.
        ServerError: The trainer server refused a request.
        JobFailed: A training step or the warm start failed.
        RolloutsFailed: Every run of the first measurement failed before the policy answered, or as `train`, or no run
            that measures difficulty has a reward. The versions made until then stay. Runs that raise after the policy
            answered are measured as failures, and a last measurement that fails is a note in the report.
    """
    async with AsyncExitStack() as stack:
        trainer = client if client is not None else await stack.enter_async_context(TrainerClient())
        if isinstance(server, Server):
            if worlds is not None or reset is not None:
                raise ConfigError(
                    "worlds= and reset= are for a server that is not connected yet: give them to `connect`"
                )
            live = server
        else:
            live = await stack.enter_async_context(connect(server, worlds=worlds, reset=reset))
        writer = None if generation.model is None else LLM.of(generation.model)
        ruler = Ruler(training.judge, seed=seed) if training.judge is not None else None
        stages = Stages(on_stage)
        if live.world:
            stages.tell(f"each run gets a copy of {live.world}")
        if live.serial:
            runs = replace(runs, max_concurrency=1)
            stages.tell("the server is reset before each run, so that runs are one after another")
        with stages.stage("scenarios", f"inventing tasks for {live.name} {live.version}"):
            divided = await _scenarios(live, scenarios, replace(generation, model=writer), seed, progress)
            stages.tell(divided.report())
        _check_sizes(divided, training.groups_per_step)
        tools, left_out = await _tools(live, divided, generation.allow_destructive)
        # the report of generated scenarios says it already
        notes = [left_out] if left_out and not any(note.startswith(left_out) for note in divided.notes) else []
        for note in notes:
            stages.tell(note)
        agent = graph(tools) if graph else build_agent(_model(trainer, policy, runs), tools, runs.system)
        adapted = await _find_or_create(trainer, policy)
        with stages.stage("before", f"measuring on {len(divided.validation)} held-out scenarios"):
            before = await _evaluate(agent, divided.validation, adapted.latest, runs, progress)
            stages.tell(f"{policy}@{before.version}, held out: {before}")
        made = Specialization(
            server=live.name,
            server_version=live.version,
            policy=policy,
            base_model=adapted.base_model,
            scenarios=divided,
            before=before,
            after=before,
            seconds=stages.seconds,
            usage=({"scenarios": writer.usage} if writer else {}) | ({"judge": ruler.usage} if ruler else {}),
            notes=notes,
        )
        if warm_start is not None:
            imitated, sft = _demonstrations(warm_start, divided.train, tools, runs.system)
            with stages.stage("warm start", f"imitating {len(imitated)} demonstrations"):
                result = await trainer.sft(policy, imitated, sft or SFTConfig(seed=seed), progress=progress)
            made.warm_start = result.metrics
            stages.tell(f"{policy}@{result.version} imitates them")
        measured: list[TrajectoryGroup] = []
        if training.difficulty_runs and training.steps:
            about = f"{training.difficulty_runs} runs of each of {len(divided.train)} training scenarios"
            with stages.stage("difficulty", about):
                measured = await _difficulty(agent, made, training, runs, progress, stages.tell)
        about = f"{training.steps} steps of {training.groups_per_step} scenarios × {training.n} runs"
        with stages.stage("train", about):
            held = HeldOut(divided.validation, verify(), solved) if training.watched else None
            to_train = made.scenarios.train
            steps = _steps(agent, to_train, measured, policy, trainer, training, ruler, runs, seed, progress, held)
            async for record in steps:
                made.steps.append(record)
                stages.tell(str(record))
        with stages.stage("after", "measuring on the held-out scenarios"):
            last, known = _outcome(made.steps, (await trainer.versions(policy))[-1].version)
            try:
                made.after = known or await _evaluate(agent, divided.validation, last, runs, progress)
            except RolloutsFailed as error:  # the training is done: its report must not be lost with the measurement
                made.notes.append(f"the last version could not be measured: {error}")
                made.after = Evaluation(error.trajectories, last, solved)
            stages.tell(f"{policy}@{last}, held out: {made.after}")
        if output is not None:
            made.adapter = await trainer.export(policy, last, Path(output) / "adapter", force=True)
            write_report(made, Path(output))
        return made


async def _scenarios(
    server: Server, scenarios: int | ScenarioSet | str | Path, generation: GenerationSettings, seed: int, progress: bool
) -> ScenarioSet:
    """The given set, the set in a file, or a set of as many generated scenarios as the number says."""
    if not isinstance(scenarios, int):
        given = scenarios if isinstance(scenarios, ScenarioSet) else ScenarioSet.load(scenarios)
        return given.with_aliases(server.world.aliases) if server.world else given
    return await generate_scenarios(
        server,
        scenarios,
        model=generation.model,
        difficulty=generation.difficulty,
        seed=seed,
        instructions=generation.instructions,
        resources=generation.resources,
        allow_destructive=generation.allow_destructive,
        validation=generation.validation,
        progress=progress,
    )


def _check_sizes(scenarios: ScenarioSet, groups_per_step: int) -> None:
    """Raises ConfigError if there are too few training scenarios for a step, or no held-out ones."""
    if len(scenarios.train) < groups_per_step or not scenarios.validation:
        raise ConfigError(
            f"{len(scenarios.train)} scenarios to train on and {len(scenarios.validation)} held out are too few "
            f"(groups_per_step={groups_per_step}): take more scenarios, or give values for arguments with resources="
        )


async def _tools(server: Server, scenarios: ScenarioSet, allow_destructive: bool) -> tuple[list[BaseTool], str]:
    """The tools of the agent, and which it does not get, and why. A policy that is trained tries everything out.

    Raises:
        ConfigError: A scenario needs a tool that the agent does not get.
        MCPError: The server did not answer.
    """
    tools = await server.tools()
    if allow_destructive or server.disposable:
        return tools, ""
    known = [
        CatalogTool(
            name=tool.name, description=tool.description, annotations=(tool.metadata or {}).get("annotations", {})
        )
        for tool in tools
    ]
    left_out = {tool.name: tool for tool in known if not tool.reads}
    needed = {name for scenario in scenarios.scenarios for name in scenario.tools}
    if missing := [tool for name, tool in left_out.items() if name in needed]:
        raise ConfigError(f"the scenarios need tools that are {withheld(missing)}. {REMEDY}")
    return [tool for tool in tools if tool.name not in left_out], f"{withheld(known)}. {REMEDY}" if left_out else ""


def _model(client: TrainerClient, policy: str, runs: RunSettings) -> ChatART:
    """The policy as the chat model of `build_agent`."""
    server = client.connection
    options: dict[str, Any] = {"base_url": server.url, "api_key": server.api_key, "max_tokens": runs.max_tokens}
    return ChatART(policy=policy, **options)


async def _find_or_create(client: TrainerClient, policy: str) -> Policy:
    known = {existing.name: existing for existing in await client.policies()}
    return known.get(policy) or await client.create_policy(policy)


async def _evaluate(
    agent: Graph, scenarios: Sequence[MCPScenario], version: int, runs: RunSettings, progress: bool
) -> Evaluation:
    return await evaluate(
        agent,
        scenarios,
        verify(),
        version=version,
        success=solved,
        max_concurrency=runs.max_concurrency,
        timeout=runs.timeout,
        progress=progress and f"held out, version {version}",
    )


def _demonstrations(
    warm_start: WarmStart | str | Path, training: Sequence[MCPScenario], tools: Sequence[BaseTool], system: str
) -> tuple[list[Conversation], SFTConfig | None]:
    """The conversations to imitate, and the settings of the SFT. None: the defaults with the seed of `specialize`."""
    if not isinstance(warm_start, WarmStart):
        warm_start = WarmStart(conversations=None if warm_start == "reference" else warm_start)
    if warm_start.conversations is None:
        return demonstrations(training, tools, system), warm_start.config
    return load_conversations(warm_start.conversations), warm_start.config


async def _difficulty(
    agent: Graph,
    made: Specialization,
    training: TrainingSettings,
    runs: RunSettings,
    progress: bool,
    tell: Callable[[str], None],
) -> list[TrajectoryGroup]:
    """Measures how hard the training scenarios are, and writes the result into the scenarios of `made`.

    Returns:
        The runs. They are at the temperature of training, and the first step may learn from them.
    """
    groups = await gather(
        agent,
        made.scenarios.train,
        training.difficulty_runs,
        verify(),
        temperature=TEMPERATURE,
        max_concurrency=runs.max_concurrency,
        timeout=runs.timeout,
        progress=progress and "measuring difficulty",
    )
    check_rewards(groups)
    training_set = rated(ScenarioSet(made.scenarios.train), Evaluation(runs_of(groups), success=solved))
    made.scenarios = replace(made.scenarios, scenarios=[*training_set.scenarios, *made.scenarios.validation])
    sometimes = len(training_set.keep_learnable())
    tell(f"{sometimes} of {len(training_set)} are solved sometimes: these come first")
    return groups


def _outcome(steps: Sequence[StepRecord], newest: int) -> tuple[int, Evaluation | None]:
    """The version that the training gives, and its evaluation, if the training made one.

    Args:
        steps: The records of the training.
        newest: The newest version.
    """
    if steps and (best := steps[-1].best):
        return best.version, replace(best.again or best.evaluation, version=best.version)
    measured = steps[-1].evaluation if steps else None
    return newest, replace(measured, version=newest) if measured else None


def _steps(
    agent: Graph,
    scenarios: Sequence[MCPScenario],
    measured: Sequence[TrajectoryGroup],
    policy: str,
    client: TrainerClient,
    training: TrainingSettings,
    ruler: Ruler | None,
    runs: RunSettings,
    seed: int,
    progress: bool,
    held_out: HeldOut | None = None,
) -> AsyncIterator[StepRecord]:
    """The steps of the training. With a judge, rewards differ from the measured ones, which are then left out."""
    return train(
        agent,
        scenarios,
        policy=policy,
        reward=verify(),
        group_reward=group_sum(judge=(training.judge_weight, ruler)) if ruler else None,
        steps=training.steps,
        client=client,
        groups_per_step=training.groups_per_step,
        n=training.n,
        config=training.config,
        sampler="learnable",
        measured=() if ruler else measured,
        temperature=TEMPERATURE,
        max_concurrency=runs.max_concurrency,
        timeout=runs.timeout,
        seed=seed,
        held_out=held_out,
        evaluate_every=training.evaluate_every,
        stop_when=None if training.patience is None else Plateau(training.patience),
        keep_best=training.keep_best,
        progress=progress,
    )
