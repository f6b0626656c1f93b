"""`art-langgraph quickstart` and `art-langgraph demo`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

NO_ENGINE = "http://127.0.0.1:9"
"""An address where no engine answers."""


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


def demo_command(
    port: Annotated[int, typer.Option(help="Port of the dashboard.", min=1, max=65535)] = 8400,
    as_json: Annotated[bool, typer.Option("--json", help="Print address and home as JSON, then serve.")] = False,
) -> None:
    """Show dashboard and viewer with a training that is made up: no vLLM, no training, no model.

    Its success by step is that of a recorded run of the quickstart; runs and tokens are drawn by chance. It answers no
    request to a model. Ctrl-C ends it, and deletes all of it.
    """
    from trainer_server.wire.errors import require_linux

    require_linux("`art-langgraph demo`")
    from trainer_server.process.cpu_torch import SERVER, require

    require(*SERVER, extra="server")
    import json
    import tempfile
    from pathlib import Path

    from art_examples.quickstart.demo import POLICY, fill, make_base

    from trainer_server.common import Home
    from trainer_server.server.access.auth import ensure_token
    from trainer_server.server.config import ServerConfig
    from trainer_server.server.serve import serve

    with tempfile.TemporaryDirectory(prefix="art-demo-") as directory:
        home, base = Home(Path(directory) / "home"), make_base(Path(directory))
        print("writing the runs of ten steps …", file=sys.stderr, flush=True)
        fill(home, base)
        token, url = ensure_token(home), f"http://127.0.0.1:{port}"
        if as_json:
            print(json.dumps({"url": url, "home": str(home.root), "token": token, "policy": POLICY}), flush=True)
        else:
            print(f"dashboard: {url}/ui/policies/{POLICY}\ntoken to log in: {token}")
            print(f"viewer, in another terminal: ART_HOME={home.root} art-langgraph trajectories list")
            print(
                "All of it is made up, and no engine runs: requests to a model are refused. Ctrl-C ends it.", flush=True
            )
        serve(ServerConfig(home=home, model=str(base), port=port, engine_urls=(NO_ENGINE,), trainer_on_demand=True))


def register(app: typer.Typer) -> None:
    """Adds the commands to `art-langgraph`."""
    app.command("demo")(demo_command)
    app.command("quickstart")(quickstart_command)
