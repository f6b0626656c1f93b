"""Trains an agent that uses an MCP server with GRPO, and measures it before and after on held-out scenarios.

runs/<name>/summary.json    seed, steps, success before and after on held-out scenarios, seconds
runs/<name>/budget.json     where the seconds and the memory went
runs/<name>/metrics.jsonl   a line per step
runs/<name>/curve.png, curve.svg, adapter/, home/ (state of the trainer server), server.log
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from art_examples.quickstart import report
from art_examples.quickstart.agent import build_agent
from art_examples.quickstart.budget import Meter
from art_examples.quickstart.reward import reward, success
from art_examples.quickstart.run_directory import Options, RunDirectory
from art_examples.quickstart.scenarios import KINDS, held_out_scenarios, training_scenarios
from art_examples.quickstart.server_process import trainer_server
from art_examples.quickstart.speed import ROLLOUTS
from langchain_core.runnables import Runnable
from rich.console import Console

from art_langgraph import (
    AlarmRules,
    ChatART,
    Evaluation,
    GRPOConfig,
    TrainerClient,
    TrajectoryGroup,
    evaluate,
    train,
)
from art_mcp import connect
from trainer_server.common import Connection

POLICY = "cities"
LEARNING_RATE = 2e-3
"""Of the first step. It decreases linearly, to 0 after the last one."""
TARGET = 0.95
"""A mean reward. When two steps in a row reach it, the training ends."""
MAX_TOKENS = 40
"""Maximum number of tokens in each answer of the model."""
CONCURRENCY = 48
"""Maximum number of runs of the agent at the same time."""
ALARMS = AlarmRules(entropy_share=0.02)
"""A policy that has learnt which tool to call is sure of it: only next to no entropy is worth an alarm here."""


def run(options: Options) -> Path:
    """Starts a trainer server, measures, trains, measures again, and reports.

    Args:
        options: Options of the command line.

    Returns:
        The directory of the run.

    Raises:
        ARTError: The server, the training or a measurement failed.
        KeyboardInterrupt: SIGINT or SIGTERM came. The server and its processes have ended by then.
    """
    console, directory, started = Console(), RunDirectory(options), time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have started this process with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    with Meter() as meter, ExitStack() as stack:
        with console.status("starting the trainer server") as status:

            def tell(line: str) -> None:
                status.update(line[:100])
                if not console.is_terminal:
                    print(f"  {line[:160]}", flush=True)

            home, log = directory.path / "home", directory.path / "server.log"
            connection = stack.enter_context(trainer_server(home, log, tell, "--max-rank", "8"))
        ready = time.monotonic() - started
        console.print(f"server ready in {ready:.0f} s: {connection.url}")
        before, after, measuring = asyncio.run(_measure_and_train(options, directory, connection, console, meter))
        seconds = {"ready": ready, "measuring": measuring, "total": time.monotonic() - started}
        report.write(console, directory, options.seed, before, after, seconds, meter.peak_memory)
    return directory.path


async def _measure_and_train(
    options: Options, directory: RunDirectory, connection: Connection, console: Console, meter: Meter
) -> tuple[Evaluation, Evaluation | None, float]:
    """Measures the untrained policy, trains it, and measures it again.

    Returns:
        The evaluations before and after the training, and the seconds that both took. The second evaluation is None if
        `options.train` is false.
    """
    mcp_server = [sys.executable, str(Path(__file__).with_name("city_server.py"))]
    async with connect(mcp_server) as cities, TrainerClient(connection.url, connection.api_key) as trainer:
        await trainer.create_policy(POLICY, rank=8, seed=options.seed)
        tools = await cities.tools()
        console.print(f"MCP server {cities.name!r}: {', '.join(tool.name for tool in tools)}")
        agent = build_agent(_model(connection), tools)

        began = time.monotonic()
        before = await _evaluate(agent, 0, options, directory, console)
        measuring = time.monotonic() - began
        report.show_evaluation(console, before, "before training")
        if not options.train:
            return before, None, measuring

        done = directory.steps()
        rewards = [row["reward"] for row in done]
        report.show_steps(console, done)
        await asyncio.to_thread(meter.lap, connection)
        groups = list[TrajectoryGroup]()
        async for record in train(
            agent,
            training_scenarios(options.seed),
            policy=POLICY,
            reward=reward,
            steps=len(done) if target_reason(rewards) else options.steps,
            client=trainer,
            groups_per_step=len(KINDS),
            n=ROLLOUTS,
            config=lambda step: _config(step, options.steps),
            max_concurrency=CONCURRENCY,
            temperature=1.0,
            shuffle=False,
            run=options.name,
            first_step=len(done) + 1,
            alarms=ALARMS,
            stop_when=lambda records: target_reason([*rewards, *(record.reward for record in records)]),
            progress=console.is_terminal,
        ):
            spent = await asyncio.to_thread(meter.lap, connection)
            report.show_step(console, directory.add_step(record, spent))
            groups += record.groups
            if record.stopped:
                console.print(record.stopped)
        report.show_dead_groups(console, groups)

        began = time.monotonic()
        newest = (await trainer.policy(POLICY)).latest
        after = await _evaluate(agent, newest, options, directory, console)
        measuring += time.monotonic() - began
        report.show_evaluation(console, after, "after training")
        await trainer.export(POLICY, newest, directory.path / "adapter", force=True)
        return before, after, measuring


def _model(connection: Connection) -> ChatART:
    """The policy as the chat model of the agent."""
    server: dict[str, Any] = {"base_url": connection.url, "api_key": connection.api_key}
    return ChatART(policy=POLICY, max_tokens=MAX_TOKENS, max_retries=6, **server)


def target_reason(rewards: Sequence[float | None]) -> str | None:
    """Why the training may end, by the mean rewards of its steps; None: it may not."""
    last = [reward for reward in rewards[-2:] if reward is not None and reward >= TARGET]
    return f"the reward was {TARGET} or more in two steps in a row: the training ends" if len(last) == 2 else None


def _config(step: int, steps: int) -> GRPOConfig:
    """Settings of a step."""
    return GRPOConfig(lr=LEARNING_RATE * (1 - (step - 1) / steps))


async def _evaluate(
    agent: Runnable[Any, Any], version: int, options: Options, directory: RunDirectory, console: Console
) -> Evaluation:
    """Evaluates a version on the held-out scenarios at temperature 0. A resumed run reads the saved evaluation."""
    if (kept := directory.evaluation(version)) is not None:
        return kept
    evaluation = await evaluate(
        agent,
        held_out_scenarios(options.held_out),
        reward,
        version=version,
        success=success,
        max_concurrency=CONCURRENCY,
        progress=console.is_terminal and f"measuring version {version}",
    )
    directory.save_evaluation(evaluation, version)
    return evaluation
