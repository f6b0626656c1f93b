"""`art-langgraph specialize` and `art-langgraph scenarios`.

The commands import LangChain, litellm and the MCP SDK when they run, so that `--help` is fast.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.cli.options import AggregationOption, load_object, make_llm
from trainer_server.wire import ConfigError, GRPOConfig, SFTConfig

if TYPE_CHECKING:
    from art_mcp.scenarios.scenario_set import ScenarioSet
    from art_mcp.specialization.specialization import Specialization

ServerArgument = Annotated[str, typer.Argument(metavar="SERVER", help="The MCP server: a command, or an http(s) URL.")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="Model that writes scenarios (provider/name). Default: schemas alone."),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--model-url", help="OpenAI-compatible endpoint of --model. Its API key: ART_JUDGE_KEY."),
]
ResourceOption = Annotated[
    list[Path] | None,
    typer.Option("--resource", help="Values for arguments: PARAMETER.txt or PARAMETER=FILE, one per line; or JSON."),
]
DestructiveOption = Annotated[
    bool,
    typer.Option(
        "--allow-destructive",
        help="Call tools that change or destroy something although the change stays. Not needed with --world or "
        "--reset.",
    ),
]
WorldOption = Annotated[
    list[str] | None,
    typer.Option(
        "--world",
        metavar="[NAME=]PATH",
        help="Directory, file, SQLite database or Git repository that the server works on; repeatable. Each run gets a "
        "copy, in which the server is started. {world} or {world:NAME} in SERVER and --env is the path of the copy; "
        "the model sees /world/NAME. The original is only read.",
    ),
]
ResetOption = Annotated[
    str | None,
    typer.Option(
        metavar="CMD|URL",
        help="Resets the server before each run: a command, or a URL that is sent a POST. Runs are then one after "
        "another. For a server whose data cannot be copied.",
    ),
]
InstructionsOption = Annotated[str | None, typer.Option(help="Additional instructions for --model.")]
DifficultyOption = Annotated[tuple[int, int], typer.Option(help="Least and greatest difficulty, 1 to 5.")]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        help="For a URL: 'Name: value', 'Name: @FILE', or @FILE with a header on each line; repeatable. Keep secrets "
        "in files: `ps` shows command lines to everybody.",
    ),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        help="Environment variable for a command: NAME (its value here), NAME=@FILE, or NAME=VALUE; repeatable. Others "
        "than HOME, PATH and the like do not reach it.",
    ),
]
SeedOption = Annotated[int, typer.Option(help="Seed of scenarios, their split and their order.")]


def scenarios_command(
    server: ServerArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="JSONL file to write.")] = Path("scenarios.jsonl"),
    n: Annotated[int, typer.Option("-n", "--n", help="Scenarios to generate, held-out ones included.", min=1)] = 24,
    model: ModelOption = None,
    model_url: UrlOption = None,
    resource: ResourceOption = None,
    allow_destructive: DestructiveOption = False,
    instructions: InstructionsOption = None,
    difficulty: DifficultyOption = (1, 5),
    header: HeaderOption = None,
    env: EnvOption = None,
    world: WorldOption = None,
    reset: ResetOption = None,
    seed: SeedOption = 0,
) -> None:
    """Generate tasks for an MCP server, do each of them once, and write those that work as JSONL, to read and edit."""
    headers, variables = headers_of(header), variables_of(env)

    async def run() -> ScenarioSet:
        from art_mcp.client.connect import connect
        from art_mcp.scenarios.generate import generate_scenarios

        async with connect(server, env=variables, headers=headers, worlds=world or None, reset=reset) as live:
            return await generate_scenarios(
                live,
                n,
                model=make_llm(model, model_url) if model else None,
                difficulty=difficulty,
                seed=seed,
                instructions=instructions,
                resources=resource,
                allow_destructive=allow_destructive,
                progress=sys.stderr.isatty(),
            )

    scenarios = asyncio.run(run())
    scenarios.save(output)
    print(scenarios.report())
    print(f"written to {output}")
    if not len(scenarios):
        raise typer.Exit(1)


def specialize_command(
    server: ServerArgument,
    policy: Annotated[str, typer.Option(help="Policy to train; created if it is missing.")] = "agent",
    scenarios: Annotated[
        str, typer.Option(metavar="N|FILE", help="Number to generate, or a JSONL file that `scenarios` wrote.")
    ] = "96",
    model: ModelOption = None,
    model_url: UrlOption = None,
    resource: ResourceOption = None,
    allow_destructive: DestructiveOption = False,
    instructions: InstructionsOption = None,
    difficulty: DifficultyOption = (1, 5),
    header: HeaderOption = None,
    env: EnvOption = None,
    world: WorldOption = None,
    reset: ResetOption = None,
    isolation: Annotated[
        str, typer.Option(help="`session`: a session for each run, for servers with a state.")
    ] = "shared",
    graph: Annotated[
        str | None, typer.Option(help="Your agent: module:function, which takes the tools. It asks ChatART(policy=…).")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Model that compares runs, besides the verifier.")] = None,
    judge_url: Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint of the judge.")] = None,
    warm_start: Annotated[
        str | None, typer.Option(help="SFT before GRPO, on `reference` or on a JSONL file of conversations.")
    ] = None,
    sft_lr: Annotated[float, typer.Option(help="Learning rate of the warm start.", min=0.0)] = 1e-3,
    sft_epochs: Annotated[int, typer.Option(help="Epochs of the warm start.", min=1)] = 3,
    steps: Annotated[int, typer.Option(help="GRPO steps.", min=0)] = 8,
    groups: Annotated[int, typer.Option(help="Scenarios per step.", min=1)] = 4,
    n: Annotated[int, typer.Option("--n", help="Runs of each scenario in a step.", min=2)] = 8,
    measure: Annotated[int, typer.Option(help="Runs of each scenario to measure its difficulty; 0: none.", min=0)] = 4,
    lr: Annotated[float, typer.Option(help="Learning rate of GRPO.", min=0.0)] = 2e-4,
    loss_aggregation: AggregationOption = "loss_type",
    evaluate_every: Annotated[
        int | None, typer.Option("--evaluate-every", help="Measure on held-out scenarios after so many steps.", min=1)
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many measurements without a gain beyond chance.", min=1)
    ] = None,
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="Promote and export the version with the highest held-out success.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens of each answer.", min=1)] = 256,
    seed: SeedOption = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of report, scenarios, adapter.")] = Path(
        "specialized"
    ),
) -> None:
    """Specialize a model to an MCP server: generate tasks, check that they can be done, train, show the difference.

    The trainer server must be running (`art-langgraph serve`). Without --model and --judge nothing leaves this machine.
    """
    if isolation not in ("shared", "session"):
        raise ConfigError(f"--isolation {isolation!r} is neither shared nor session")
    headers, variables = headers_of(header), variables_of(env)
    chosen = _number_or_file(scenarios)
    tell = _stage_printer()

    async def run() -> Specialization:
        from art_mcp.client.connect import connect
        from art_mcp.specialization.settings import GenerationSettings, RunSettings, TrainingSettings, WarmStart
        from art_mcp.specialization.specialize import specialize

        sft = SFTConfig(lr=sft_lr, num_train_epochs=sft_epochs, seed=seed)
        conversations = None if warm_start == "reference" else warm_start
        async with connect(
            server,
            env=variables,
            isolation="session" if isolation == "session" else "shared",
            headers=headers,
            worlds=world or None,
            reset=reset,
        ) as connected:
            return await specialize(
                connected,
                policy=policy,
                scenarios=chosen,
                graph=load_object(graph) if graph else None,
                generation=GenerationSettings(
                    model=make_llm(model, model_url) if model else None,
                    difficulty=difficulty,
                    instructions=instructions,
                    resources=resource,
                    allow_destructive=allow_destructive,
                ),
                warm_start=WarmStart(conversations=conversations, config=sft) if warm_start else None,
                training=TrainingSettings(
                    steps=steps,
                    groups_per_step=groups,
                    n=n,
                    config=GRPOConfig(lr=lr, loss_aggregation=loss_aggregation),
                    difficulty_runs=measure,
                    judge=make_llm(judge, judge_url) if judge else None,
                    evaluate_every=evaluate_every,
                    patience=patience,
                    keep_best=keep_best,
                ),
                runs=RunSettings(max_tokens=max_tokens),
                seed=seed,
                output=output,
                progress=sys.stderr.isatty(),
                on_stage=tell,
            )

    made = asyncio.run(run())
    print(made.dead_groups)
    print(f"held out, before: {made.before}")
    print(f"held out, after: {made.after}")
    print(f"use {made.model}; the report is {output / 'report.html'}")


def register(root: typer.Typer) -> None:
    """Adds the commands to `art-langgraph`."""
    root.command("scenarios")(scenarios_command)
    root.command("specialize")(specialize_command)


def _stage_printer() -> Callable[[str], None]:
    """Returns a function that prints a line with the seconds since the start of the command."""
    from rich.console import Console

    console, started = Console(), time.monotonic()

    def tell(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.0f} s[/dim]  ", end="")
        console.print(text, markup=False, highlight=False)

    return tell


def _number_or_file(scenarios: str) -> int | Path:
    """The value of --scenarios. Raises ConfigError for a number below 1 and for a missing file."""
    if scenarios.removeprefix("-").isdigit():
        if (count := int(scenarios)) < 1:
            raise ConfigError(f"--scenarios {count}: at least one must be generated")
        return count
    if not Path(scenarios).is_file():
        raise ConfigError(
            f"--scenarios {scenarios!r} is neither a number nor a file; `art-langgraph scenarios` writes one"
        )
    return Path(scenarios)


def headers_of(options: list[str] | None) -> dict[str, str] | None:
    """The values of --header by name, or None if there are none.

    Args:
        options: Each `Name: value`; `Name: @FILE`, for a value that is in a file; or `@FILE`, for a file with one
            `Name: value` a line. Blank lines and lines that begin with # are left out.

    Raises:
        ConfigError: An option or a line has another form, a value is no header's, or a file cannot be read. The message
            leaves out what was given, which may have a secret.
    """
    headers: dict[str, str] = {}
    for option in options or ():
        if not option.startswith("@"):
            name, value = _header(option, "--header takes 'Name: value', 'Name: @FILE' or @FILE")
            headers[name] = _sendable(name, _value(value, "--header"), "--header")
            continue
        for number, line in enumerate(_read(option[1:], "--header").splitlines(), start=1):
            if line.strip() and not line.startswith("#"):
                where = f"{option[1:]}, line {number}"
                name, value = _header(line, f"{where}: a header is 'Name: value'")
                headers[name] = _sendable(name, value, where)
    return headers or None


def variables_of(options: list[str] | None) -> dict[str, str] | None:
    """The values of --env by name, or None if there are none.

    Args:
        options: Each `NAME`, for the value that the variable has here; `NAME=@FILE`; or `NAME=VALUE`.

    Raises:
        ConfigError: An option has another form, a variable is not set, or a file cannot be read.
    """
    variables: dict[str, str] = {}
    for option in options or ():
        name, given, value = option.partition("=")
        if not name:
            raise ConfigError("--env takes NAME, NAME=@FILE or NAME=VALUE")
        if not given and name not in os.environ:
            raise ConfigError(f"--env {name}: {name} is not set in this environment")
        variables[name] = _value(value, "--env") if given else os.environ[name]
    return variables or None


def _header(text: str, otherwise: str) -> tuple[str, str]:
    """Name and value of a header. Raises ConfigError with the message `otherwise` if it has another form."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigError(otherwise)
    return name.strip(), value.strip()


def _sendable(name: str, value: str, where: str) -> str:
    """The value of a header. Raises ConfigError if HTTP cannot carry it; the HTTP client's own error would quote it."""
    if not (value.isascii() and value.isprintable()):
        raise ConfigError(f"{where}: the value of {name} must be one line of ASCII characters")
    return value


def _value(text: str, option: str) -> str:
    """A value, or what the file has that it names by @. option: for the error message."""
    return _read(text[1:], option).strip() if text.startswith("@") else text


def _read(path: str, option: str) -> str:
    """Reads a file. Raises ConfigError if it cannot be read."""
    try:
        return Path(path).expanduser().read_text()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{option}: {path} cannot be read: {reason}") from None
