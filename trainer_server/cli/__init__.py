"""Commands of the server side: `art-langgraph demo`, `serve`, `plan`, `doctor`, `engine install | command | status`,
`tokens`, `audit`, `backup`, `restore`, `ledger archive | move`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from trainer_server.cli.backup import backup_command, restore_command
from trainer_server.cli.demo import demo_command
from trainer_server.cli.ledger import app as ledger_app
from trainer_server.cli.local import ReasoningOption, ToolOption
from trainer_server.cli.tokens import app as tokens_app
from trainer_server.cli.tokens import audit_command
from trainer_server.common import Home
from trainer_server.common.extensions import register_commands
from trainer_server.common.options import help_of, with_flags
from trainer_server.process.cpu_torch import SERVER, require
from trainer_server.server.config import ServerConfig

_MEANINGS = help_of(ServerConfig)
_MediaOption = Annotated[list[str] | None, typer.Option(help=_MEANINGS["media_domains"])]
_TrustOption = Annotated[bool, typer.Option("--trust-remote-code", help=_MEANINGS["trust_remote_code"])]


@with_flags
def serve_command(config: ServerConfig) -> None:
    """Serve a base model and its policies: OpenAI-compatible gateway, training API, dashboard.

    Writes its address and a bearer token under the home directory, where ChatART and TrainerClient find them.
    ART_TRACKERS=wandb,tensorboard in the environment shows the metrics of all jobs there too.
    Stop it with Ctrl-C: vLLM and the trainer end with it, and a restart goes on where it was.
    """
    require(*SERVER, extra="server")
    from trainer_server.server.serve import serve
    from trainer_server.tracking import named_by

    serve(
        replace(
            config,
            engine_api_key=os.environ.get("ART_ENGINE_API_KEY"),
            teacher_api_key=os.environ.get("ART_TEACHER_API_KEY"),
            trackers=tuple(named_by()),
        )
    )


engine_app = typer.Typer(help="vLLM's own environment.", no_args_is_help=True)


@engine_app.command("install")
def install_command(
    kind: Annotated[str | None, typer.Option(help="`cpu` or `cuda`; default: by the hardware.")] = None,
) -> None:
    """Install vLLM into an environment of its own. Does nothing when it is there already."""
    from trainer_server.engines.vllm import install as engine_install

    console = Console(emoji=False, stderr=True)
    if hint := engine_install.find_unused(Home.find().cache):
        console.print(hint)
    with console.status("installing vLLM", spinner="dots") as status:
        installation = engine_install.install(
            Home.find().cache,
            (lambda line: status.update(line)) if console.is_terminal else console.print,
            kind=kind,
        )
    console.print(f"{installation.requirement} ({installation.flavour}) in {installation.directory}")


@engine_app.command("command")
def command_command(
    model: Annotated[str, typer.Option(help="As `serve` has it; the same on all machines.")],
    revision: Annotated[str | None, typer.Option(help="As `serve` has it; the same on all machines.")] = None,
    host: Annotated[str, typer.Option(help="Address that vLLM listens on; the network between must be trusted.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port that vLLM listens on.", min=1, max=65535)] = 8000,
    gpus: Annotated[str | None, typer.Option(help="GPUs of this engine, `0` or `2,3`. Default: all.")] = None,
    adapter_slots: Annotated[int, typer.Option(help="As `serve` has it.", min=2)] = 6,
    max_rank: Annotated[int, typer.Option(help="As `serve` has it.")] = 16,
    tool_call_parser: ToolOption = "auto",
    reasoning_parser: ReasoningOption = "auto",
    trust_remote_code: _TrustOption = False,
    engine_args: Annotated[str, typer.Option(help="Flags passed to vLLM, as one quoted string.")] = "",
    allowed_media_domain: _MediaOption = None,
    adapters_from: Annotated[
        str | None,
        typer.Option(
            help="The trainer server's address, as this machine sees it: vLLM fetches adapters there, with its key. "
            "Default: it reads them in the server's home, which must be at the same path here.",
            envvar="ART_ADAPTERS_FROM",
        ),
    ] = None,
) -> None:
    """Print the shell line that starts a vLLM fit for `serve --engine-url`, here or on another machine.

    Its key is taken from ART_ENGINE_API_KEY, which `serve` reads too. Without a key the line starts nothing. Which
    parsers it has, and why, is printed to the standard error.
    """
    from trainer_server.engines.base import EngineSettings
    from trainer_server.engines.served_model import resolve
    from trainer_server.engines.vllm.command import command, environment, fetching
    from trainer_server.engines.vllm.parsers import parsers_of
    from trainer_server.process.hardware import flavour

    home = Home.find()
    base = resolve(model, home.cache, revision=revision, trust_remote_code=trust_remote_code)
    words = shlex.split(engine_args)
    parsers = parsers_of(base.path, home.cache, tools=tool_call_parser, reasoning=reasoning_parser, args=words)
    for reason in parsers.lines():
        print(reason, file=sys.stderr)
    settings = EngineSettings(
        base=base,
        home=home,
        cpu=flavour() == "cpu",
        args=tuple(words),
        adapter_slots=adapter_slots,
        max_rank=max_rank,
        media_domains=tuple(allowed_media_domain or ()),
    )
    line = command(settings, port, host=host, parsers=parsers, fetches=adapters_from is not None)
    variables = environment(settings, "", gpus)
    del variables["VLLM_API_KEY"]
    if adapters_from is not None:
        variables |= fetching(adapters_from, home.cache)
    assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    key = 'VLLM_API_KEY="${ART_ENGINE_API_KEY:?is not set: give it the key that serve has}"'
    print(" ".join([key, *assignments, shlex.join(line)]))


@engine_app.command("status")
def status_command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False) -> None:
    """Show whether vLLM is installed, and where. Ends with status 1 if it is not.

    `art-langgraph status` shows the engines of a running server.
    """
    from trainer_server.engines.vllm import install as engine_install

    cache = Home.find().cache
    installation = engine_install.status(cache)
    if as_json:
        facts = {"installed": installation is not None, "unused": engine_install.find_unused(cache) or None}
        if installation is not None:
            facts |= {"requirement": installation.requirement, "flavour": installation.flavour}
        where = engine_install.directory(cache) if installation is None else installation.directory
        print(json.dumps({**facts, "directory": str(where)}, indent=2))
        if installation is None:
            raise typer.Exit(1)
        return
    if installation is None:
        print(f"not installed in {engine_install.directory(cache)}: run `art-langgraph engine install`")
    else:
        print(f"{installation.requirement} ({installation.flavour}) in {installation.directory}")
    if hint := engine_install.find_unused(cache):
        print(hint)
    if installation is None:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Adds this package's commands to `art-langgraph`."""
    app.command("demo")(demo_command)
    app.command("serve")(serve_command)
    register_commands(app, ("trainer_server.planning.command", "trainer_server.doctor.command"))
    app.add_typer(engine_app, name="engine")
    app.add_typer(tokens_app, name="tokens")
    app.command("audit")(audit_command)
    app.command("backup")(backup_command)
    app.command("restore")(restore_command)
    app.add_typer(ledger_app, name="ledger")
