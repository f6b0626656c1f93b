"""`art-langgraph quickstart`."""

from __future__ import annotations

from typing import Annotated

import typer


def quickstart_command(
    steps: Annotated[
        int,
        typer.Option(
            help="Training steps, of 6 scenarios (one of each kind) with 8 rollouts each. The training ends earlier "
            "when the reward holds.",
            min=1,
        ),
    ] = 10,
    seed: Annotated[
        int | None, typer.Option(help="Seeds the LoRA and the choice of scenarios. Default: 0, or the resumed run's.")
    ] = None,
    held_out: Annotated[
        int | None,
        typer.Option(
            "--held-out",
            "--validation",
            help="Held-out scenarios to measure on. Default: 120, or fewer on a slow processor.",
            min=1,
            max=360,
        ),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="--no-train only measures the untrained policy.")
    ] = True,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was stopped: the latest, or --name.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: by seed and time.")] = None,
) -> None:
    """Train an example agent from scratch: a LangGraph agent with tools of a real MCP server, on the embedded model.

    Starts a trainer server, measures the untrained policy on held-out scenarios, trains it with GRPO, measures again.
    Everything it makes is in runs/<name>/. Ctrl-C leaves no process behind; --resume goes on.
    """
    from trainer_server.wire.errors import require_linux

    require_linux("`art-langgraph quickstart`")
    from trainer_server.common import Home
    from trainer_server.engines.vllm import install as engine_install
    from trainer_server.process.cpu_torch import SERVER, require

    require(*SERVER, "matplotlib", extra="server,quickstart")
    from art_examples.quickstart.quickstart import run
    from art_examples.quickstart.run_directory import Options
    from art_examples.quickstart.speed import choose_held_out

    cache = Home.find().cache
    if notice := engine_install.find_unused(cache):
        print(notice)
    engine_install.install(cache, print)
    if not resume:
        held_out = choose_held_out(held_out, steps if train else 0, print)
    options = Options.of(name, seed, resume, held_out, steps=steps, train=train)
    try:
        run(options)
    except KeyboardInterrupt:
        print(f"stopped; `art-langgraph quickstart --name {options.name} --resume` goes on")
        raise typer.Exit(130) from None


def register(app: typer.Typer) -> None:
    """Adds the command to `art-langgraph`."""
    app.command("quickstart")(quickstart_command)
