"""`art-langgraph specialize`. LangChain, litellm and the MCP SDK are imported when it runs: `--help` is fast."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.cli.options import JsonOption, load_object, make_llm
from art_langgraph.cli.printing import print_json
from art_langgraph.loop.options import values_of
from art_mcp.cli.options import ConnectionFlags, GenerationFlags, ServerArgument
from art_mcp.options import AgentOptions, TrainingOptions
from trainer_server.common.options import with_flags
from trainer_server.wire import ARTError, ConfigError

if TYPE_CHECKING:
    from art_mcp.specialization.settings import TrainingSettings, WarmStart
    from art_mcp.specialization.specialization import Specialization


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """A run of `specialize` on the command line.

    Args:
        policy: Policy to train; created if it is missing.
        minutes: Time for everything, divided among the stages. 0: no limit, fixed numbers.
        resume: Continue the run in --output that was killed, with the same options.
        scenarios: Most scenarios to generate, or a JSONL file that `scenarios` wrote. Default: as many as time allows.
        isolation: `session`: a session for each run, for servers with a state.
        graph: Your agent: module:function, which takes the tools. It asks ChatART(policy=…).
    """

    policy: str = "agent"
    minutes: float = 20.0
    resume: bool = False
    scenarios: str | None = field(default=None, metadata={"metavar": "N|FILE"})
    isolation: str = "shared"
    graph: str | None = None

    def check(self) -> None:
        """Raises ConfigError if one of them is invalid."""
        if self.isolation not in ("shared", "session"):
            raise ConfigError(f"--isolation {self.isolation!r} is neither shared nor session")
        if self.minutes < 0:
            raise ConfigError(f"--minutes {self.minutes:g} must be above 0, or 0 for no limit")

    def number_or_file(self) -> int | Path | None:
        """The value of --scenarios. Raises ConfigError for a number below 1 and for a missing file."""
        scenarios = self.scenarios
        if scenarios is None:
            return None
        if scenarios.removeprefix("-").isdigit():
            if (count := int(scenarios)) < 1:
                raise ConfigError(f"--scenarios {count}: at least one must be generated")
            return count
        if not Path(scenarios).is_file():
            raise ConfigError(
                f"--scenarios {scenarios!r} is neither a number nor a file; `art-langgraph scenarios` writes one"
            )
        return Path(scenarios)


@dataclass(frozen=True, kw_only=True)
class WarmStartFlags:
    """A warm start on the command line.

    Args:
        warm_start: SFT before GRPO: on `reference`, on a JSONL file of conversations, or `none`. `auto`: `reference`,
            and `none` with --graph.
        sft_lr: Learning rate of the warm start.
        sft_epochs: Most epochs of the warm start.
    """

    warm_start: str = "auto"
    sft_lr: float | None = field(default=None, metadata={"min": 0.0})
    sft_epochs: int | None = field(default=None, metadata={"min": 1})

    def settings(self, *, own_agent: bool) -> WarmStart | None:
        """The settings of the warm start. None: there is none.

        Args:
            own_agent: Whether the agent is the user's.

        Raises:
            ConfigError: There is none, and a flag is for one.
        """
        from art_mcp.specialization.settings import WarmStart

        option, lr, epochs = self.warm_start, self.sft_lr, self.sft_epochs
        if option == "none" or (option == "auto" and own_agent):
            if lr is not None or epochs is not None:
                raise ConfigError(
                    "--sft-lr and --sft-epochs are for a warm start: give --warm-start reference or a file"
                )
            return None
        conversations = None if option in ("auto", "reference") else option
        return WarmStart(conversations=conversations, lr=lr or None, epochs=epochs)


@dataclass(frozen=True, kw_only=True)
class TrainingFlags(TrainingOptions):
    """Training with GRPO on the command line.

    Args:
        judge: Model that compares runs, besides the verifier.
        judge_url: OpenAI-compatible endpoint of the judge.
    """

    judge: str | None = None
    judge_url: str | None = None

    def settings(self) -> TrainingSettings:
        """The settings of the training."""
        from art_mcp.specialization.settings import TrainingSettings

        judge = make_llm(self.judge, self.judge_url) if self.judge else None
        return TrainingSettings(judge=judge, **values_of(self, TrainingOptions))


@with_flags
def specialize_command(
    server: ServerArgument,
    run: Annotated[RunFlags, None],
    generation: Annotated[GenerationFlags, None],
    connection: Annotated[ConnectionFlags, None],
    imitation: Annotated[WarmStartFlags, None],
    training: Annotated[TrainingFlags, None],
    agent: Annotated[AgentOptions, None],
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of report, scenarios, adapter.")] = Path(
        "specialized"
    ),
    as_json: JsonOption = False,
) -> None:
    """Specialize a model to an MCP server: generate tasks, check that they can be done, train, show the difference.

    The trainer server must be running (`art-langgraph serve`). Without --model, --paraphrase and --judge nothing leaves
    this machine; `policy` as a model leaves it with the trainer server.
    """
    run.check()
    keywords = {**connection.keywords(), "isolation": run.isolation}
    scenarios = run.number_or_file()
    on_stage = _stage_printer(stderr=as_json)

    async def specialization() -> Specialization:
        from art_mcp.client.connect import connect
        from art_mcp.specialization.settings import GenerationSettings, RunSettings
        from art_mcp.specialization.specialize import specialize

        async with connect(server, **keywords) as live:
            return await specialize(
                live,
                policy=run.policy,
                minutes=run.minutes or None,
                scenarios=scenarios,
                graph=load_object(run.graph) if run.graph else None,
                generation=GenerationSettings(**generation.keywords()),
                warm_start=imitation.settings(own_agent=run.graph is not None),
                training=training.settings(),
                runs=RunSettings(**values_of(agent, AgentOptions)),
                seed=generation.seed,
                output=output,
                resume=run.resume,
                progress=sys.stderr.isatty(),
                on_stage=on_stage,
            )

    try:
        outcome = asyncio.run(specialization())
    except ConfigError:
        raise
    except (ARTError, KeyboardInterrupt):
        if (output / "progress.jsonl").exists():
            print(f"what was done until now is in {output}; the same command with --resume goes on", file=sys.stderr)
        raise
    if as_json:
        dead = outcome.dead_groups.summary() if outcome.groups else None
        print_json({**outcome.summary(), "dead_groups": dead, "report": str(output / "report.html")})
        return
    if outcome.groups:
        print(outcome.dead_groups)
    for stage, measurement in outcome.measurements.items():
        print(f"held out, {stage}: {measurement}")
    if outcome.gain is not None:
        print(f"gain of reinforcement learning: {outcome.gain}")
    elif not outcome.steps and outcome.warm_start is not None:
        print("no step of reinforcement learning was taken")
    elif not outcome.steps:
        print("nothing was trained: if stages were left out for lack of time, give more --minutes")
    print(f"use {outcome.model}; the report is {output / 'report.html'}")


def _stage_printer(*, stderr: bool) -> Callable[[str], None]:
    """Returns a function that prints a line with the seconds since the start of the command."""
    from rich.console import Console

    console, start = Console(emoji=False, stderr=stderr), time.monotonic()

    def print_stage(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - start:6.0f} s[/dim]  ", end="")
        console.print(text, markup=False, highlight=False)

    return print_stage
