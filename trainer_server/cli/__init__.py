"""Commands of the server side: `art-langgraph serve`, `plan`, `doctor`, `engine install | command | status`, `tokens`,
`audit`, `backup`, `restore`, `ledger archive | move`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from trainer_server.cli.backup import backup_command, restore_command
from trainer_server.cli.ledger import app as ledger_app
from trainer_server.cli.local import ReasoningOption, ToolOption
from trainer_server.cli.tokens import app as tokens_app
from trainer_server.cli.tokens import audit_command
from trainer_server.common import Home
from trainer_server.common.extensions import register_commands
from trainer_server.process.extras import SERVER, require

_Splice = Literal["off", "exact", "thoughts"]
"""The values of `gateway.splice.splicer.SpliceMode`, which only the server's process imports."""
_MediaOption = Annotated[
    list[str] | None,
    typer.Option(help="A domain from which images and other media may be fetched; repeatable. Default: none."),
]
_TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Let engine and trainer run Python code in the model's directory. Needed by models that transformers does "
        "not know; read that code first.",
    ),
]
_HomeOption = Annotated[
    Path | None, typer.Option("--home", help="State directory, for its owner only (ART_HOME, ~/.art-langgraph).")
]


def serve_command(
    model: Annotated[
        str, typer.Option(help="`embedded` (SmolLM2-135M-Instruct from its package), a model directory, or a hub id.")
    ] = "embedded",
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a hub model. Default: its main branch.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Kind of engine: `vllm`, or `module:factory` of one that you wrote.")
    ] = "vllm",
    engine_url: Annotated[
        list[str] | None,
        typer.Option(
            help="A vLLM that runs already: http://host:port, or unix:/path; repeatable. Default: start one here."
        ),
    ] = None,
    engine_gpus: Annotated[
        list[str] | None,
        typer.Option(help="GPUs of one engine, `0` or `2,3`; repeatable: a vLLM on each."),
    ] = None,
    trainer_gpus: Annotated[str | None, typer.Option(help="GPUs of the trainer, `0` or `6,7`. Default: all.")] = None,
    share_gpu: Annotated[
        bool,
        typer.Option(
            help="Engine and trainer use the same GPU by turns: vLLM sleeps during a step, and each may take nearly "
            "all memory. `plan` says what fits."
        ),
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on. Anything but loopback is reachable by others.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.", min=0, max=65535)] = 8400,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="A name by which clients call this server, as in their URLs; repeatable. Default: --host."),
    ] = None,
    ssl_certfile: Annotated[
        Path | None, typer.Option(help="Certificate and its chain, PEM: the server speaks HTTPS.", dir_okay=False)
    ] = None,
    ssl_keyfile: Annotated[
        Path | None, typer.Option(help="Key of --ssl-certfile. Default: it is in the same file.", dir_okay=False)
    ] = None,
    insecure: Annotated[
        bool, typer.Option(help="Allow a --host that others reach without a certificate: behind a proxy, in a tunnel.")
    ] = False,
    max_body_mib: Annotated[int, typer.Option(help="Largest body of a request, MiB.", min=1)] = 64,
    home: _HomeOption = None,
    ledger: Annotated[
        str,
        typer.Option(
            help="Where completions are recorded: `sqlite`; the address of a PostgreSQL database, "
            "postgresql://USER@HOST/NAME; or `module:factory` of your own. Others can read command lines: put an "
            "address with a password into ART_LEDGER.",
            envvar="ART_LEDGER",
        ),
    ] = "sqlite",
    gateway_of: Annotated[
        str | None,
        typer.Option(
            help="URL of the server that trains: this one only answers, with the same --home, --ledger in PostgreSQL "
            "and --engine-url. Default: this one trains."
        ),
    ] = None,
    tool_call_parser: ToolOption = "auto",
    reasoning_parser: ReasoningOption = "auto",
    trust_remote_code: _TrustOption = False,
    engine_args: Annotated[str, typer.Option(help="Flags passed to vLLM, as one quoted string.")] = "",
    allowed_media_domain: _MediaOption = None,
    splice: Annotated[
        _Splice,
        typer.Option(
            help="Prompt the engine with the tokens that it sampled in the conversation's earlier turn, where the chat "
            "template would write them otherwise: `exact`, only prompts that say the same messages; `thoughts`, also "
            "keep thoughts that template or client leave out; `off`, never."
        ),
    ] = "exact",
    turns_mib: Annotated[
        int,
        typer.Option(
            help="Memory for the tokens of earlier turns, MiB: 4 bytes a token of prompt and answer, and 4 KB a turn.",
            min=1,
        ),
    ] = 128,
    engine_env: Annotated[
        list[str] | None,
        typer.Option(
            help="An environment variable that vLLM gets too, by name; repeatable. By itself it gets those of the "
            "system, GPUs, Hugging Face and vLLM, and no keys or tokens."
        ),
    ] = None,
    trainer_processes: Annotated[
        int, typer.Option(help="Trainer processes that share each step, a GPU each.", min=1)
    ] = 1,
    trainer_shard: Annotated[
        bool,
        typer.Option(help="Divide the base model among the trainer processes (FSDP2), where one GPU cannot hold it."),
    ] = False,
    accelerate_config: Annotated[
        Path | None,
        typer.Option(
            help="Start the trainer by `accelerate launch` with this configuration.", exists=True, dir_okay=False
        ),
    ] = None,
    trainer_low_priority: Annotated[
        bool | None,
        typer.Option(
            help="Leave the processor to answers: the trainer gets what others do not need. Default: without a GPU.",
            envvar="ART_TRAINER_LOW_PRIORITY",
        ),
    ] = None,
    trainer_on_demand: Annotated[
        bool,
        typer.Option(
            "--trainer-on-demand",
            help="Start the trainer with the first job, not with the server: it takes no memory until then, and the "
            "first job waits until it is ready.",
        ),
    ] = False,
    loss: Annotated[
        list[str] | None,
        typer.Option(help="Another loss_type for steps, NAME=MODULE:ATTRIBUTE of a Loss; repeatable. See docs."),
    ] = None,
    teacher_url: Annotated[
        list[str] | None,
        typer.Option(
            help="Another vLLM, http://host:port, that steps may name as a teacher (`distill`); repeatable. "
            "Its key is read from ART_TEACHER_API_KEY. Default: none; policies and the base model can always teach."
        ),
    ] = None,
    trainer_args: Annotated[str, typer.Option(help="Flags passed to the trainer, as one quoted string.")] = "",
    trainer_env: Annotated[
        list[str] | None,
        typer.Option(help="An environment variable that the trainer gets too, by name; repeatable. See --engine-env."),
    ] = None,
    kv_cache_gib: Annotated[
        int, typer.Option(help="Memory for vLLM's KV cache on CPUs, GiB. On GPUs: --engine-args.", min=1)
    ] = 2,
    max_tokens: Annotated[
        int, typer.Option(help="Most tokens of an answer whose request names no max_tokens.", min=1)
    ] = 1024,
    adapter_slots: Annotated[int, typer.Option(help="Adapters held by each engine at once.", min=2)] = 6,
    max_rank: Annotated[int, typer.Option(help="Largest LoRA rank that policies may have.")] = 16,
    keep_versions: Annotated[
        int | None,
        typer.Option(
            help="Versions kept of each policy, besides its best, version 0, those in use. Default: all.", min=1
        ),
    ] = None,
    redact: Annotated[
        str | None,
        typer.Option(
            help="MODULE:FUNCTION that takes a text and returns what is stored instead: of prompts, answers, traces. "
            "Token ids are stored as they are."
        ),
    ] = None,
    keep_days: Annotated[
        float,
        typer.Option(help="Days for which completions and their rollouts are kept. Open jobs keep theirs.", min=1),
    ] = 30.0,
    keep_gib: Annotated[
        float | None,
        typer.Option(
            help="Size of the ledger above which the oldest completions are deleted before their time; 0: no limit.",
            min=0,
        ),
    ] = 50.0,
    keep_jobs: Annotated[
        float,
        typer.Option(help="Days for which jobs that have ended stay listed; then jobs/ended.jsonl has them.", min=1),
    ] = 30.0,
    keep_jobs_gib: Annotated[
        float,
        typer.Option(
            help="Size of all jobs above which those that ended first are deleted before their time; 0: no limit.",
            min=0,
        ),
    ] = 20.0,
    keep_traces_gib: Annotated[
        float,
        typer.Option(
            help="Size of what clients told of their runs above which the oldest of it is deleted before its time; 0: "
            "no limit.",
            min=0,
        ),
    ] = 20.0,
    gpu_hour_price: Annotated[
        float | None,
        typer.Option(
            help="Price of an hour of one GPU in USD, for the costs that trainings report.",
            envvar="ART_GPU_HOUR_PRICE",
            min=0.0,
        ),
    ] = None,
    billed_gpus: Annotated[
        int | None,
        typer.Option(
            help="GPUs that are paid for while the server runs. Default: those of this machine; unknown with "
            "--engine-url.",
            min=0,
        ),
    ] = None,
    job_time_limit: Annotated[
        float, typer.Option(help="Seconds that the trainer may take for one job; a job that takes longer fails.", min=1)
    ] = 86400.0,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="Lines of the log: for people, or a JSON object each.")
    ] = "text",
    log_file: Annotated[
        Path | None, typer.Option(help="A file that gets the log too, besides the standard error.", dir_okay=False)
    ] = None,
    log_max_mib: Annotated[int, typer.Option(help="Size at which another --log-file is begun, MiB.", min=1)] = 50,
    log_files: Annotated[int, typer.Option(help="Earlier log files that are kept: FILE.1 is the newest.", min=1)] = 5,
    log_requests: Annotated[bool, typer.Option(help="Log each request: route, status, seconds.")] = False,
) -> None:
    """Serve a base model and its policies: OpenAI-compatible gateway, training API, dashboard.

    Writes its address and a bearer token under the home directory, where ChatART and TrainerClient find them.
    ART_TRACKERS=wandb,tensorboard in the environment shows the metrics of all jobs there too.
    Stop it with Ctrl-C: vLLM and the trainer end with it, and a restart goes on where it was.
    """
    import os

    require(*SERVER, extra="server")
    from trainer_server.process.logs import LogSettings
    from trainer_server.server.config import ServerConfig
    from trainer_server.server.serve import serve
    from trainer_server.tracking import named_by

    serve(
        ServerConfig(
            home=Home.find(home),
            logs=LogSettings(
                format=log_format, file=log_file, max_mib=log_max_mib, files=log_files, requests=log_requests
            ),
            ledger=ledger,
            gateway_of=gateway_of,
            model=model,
            revision=revision,
            host=host,
            port=port,
            allowed_hosts=tuple(allowed_host or ()),
            ssl_certfile=ssl_certfile,
            ssl_keyfile=ssl_keyfile,
            insecure=insecure,
            max_body_mib=max_body_mib,
            engine=engine,
            engine_urls=tuple(engine_url or ()),
            engine_api_key=os.environ.get("ART_ENGINE_API_KEY"),
            teacher_urls=tuple(teacher_url or ()),
            teacher_api_key=os.environ.get("ART_TEACHER_API_KEY"),
            tool_call_parser=tool_call_parser,
            reasoning_parser=reasoning_parser,
            trust_remote_code=trust_remote_code,
            engine_args=tuple(shlex.split(engine_args)),
            media_domains=tuple(allowed_media_domain or ()),
            splice=splice,
            turns_mib=turns_mib,
            engine_env=tuple(engine_env or ()),
            engine_gpus=tuple(engine_gpus or ()),
            trainer_gpus=trainer_gpus,
            share_gpu=share_gpu,
            trainer_processes=trainer_processes,
            trainer_shard=trainer_shard,
            accelerate_config=accelerate_config,
            trainer_low_priority=trainer_low_priority,
            trainer_on_demand=trainer_on_demand,
            losses=tuple(loss or ()),
            trainer_args=tuple(shlex.split(trainer_args)),
            trainer_env=tuple(trainer_env or ()),
            kv_cache_gib=kv_cache_gib,
            max_tokens=max_tokens,
            adapter_slots=adapter_slots,
            max_rank=max_rank,
            keep_versions=keep_versions,
            redact=redact,
            keep_days=keep_days,
            keep_gib=keep_gib or None,
            keep_jobs=keep_jobs,
            keep_jobs_gib=keep_jobs_gib or None,
            keep_traces_gib=keep_traces_gib or None,
            job_time_limit=job_time_limit,
            trackers=tuple(named_by()),
            gpu_hour_price=gpu_hour_price,
            billed_gpus=billed_gpus,
        )
    )


engine_app = typer.Typer(help="vLLM's own environment.", no_args_is_help=True)


@engine_app.command("install")
def install_command(
    kind: Annotated[str | None, typer.Option(help="`cpu` or `cuda`; default: by the hardware.")] = None,
) -> None:
    """Install vLLM into an environment of its own. Does nothing when it is there already."""
    from trainer_server.engines.vllm import install as engine_install

    console = Console(stderr=True)
    if unused := engine_install.find_unused(Home.find().cache):
        console.print(unused)
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
    line = command(
        base,
        home,
        port,
        host=host,
        max_loras=adapter_slots,
        max_rank=max_rank,
        cpu=flavour() == "cpu",
        extra=words,
        media_domains=allowed_media_domain or (),
        parsers=parsers,
        fetches=adapters_from is not None,
    )
    variables = environment(base, "", kv_cache_gib=2, gpus=gpus)
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
    if unused := engine_install.find_unused(cache):
        print(unused)
    if installation is None:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Adds this package's commands to `art-langgraph`."""
    app.command("serve")(serve_command)
    register_commands(app, ("trainer_server.planning.command", "trainer_server.doctor.command"))
    app.add_typer(engine_app, name="engine")
    app.add_typer(tokens_app, name="tokens")
    app.command("audit")(audit_command)
    app.command("backup")(backup_command)
    app.command("restore")(restore_command)
    app.add_typer(ledger_app, name="ledger")
