"""`art-langgraph plan`: prints tables of the memory on each GPU, and the command to run."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from trainer_server.cli.local import ReasoningOption, ToolOption
from trainer_server.common import Home
from trainer_server.engines.model_files import ModelFiles
from trainer_server.engines.served_model import present_directory
from trainer_server.engines.vllm.command import experts_obstacle
from trainer_server.engines.vllm.parsers import AUTO, REASONING_FLAG, TOOL_FLAG, check_parser_names, parsers_of
from trainer_server.planning.model_shape import ModelShape
from trainer_server.planning.plan import CONTEXT, Item, Plan, Workload, make_plan, remedies
from trainer_server.wire import ConfigError


def plan_command(
    model: Annotated[
        str, typer.Option(help="A model directory, its config.json, a known name (Qwen/Qwen3-8B), or `embedded`.")
    ],
    gpus: Annotated[int, typer.Option(help="GPUs of one machine.", min=1, max=64)] = 1,
    gpu_memory: Annotated[float, typer.Option(help="Memory of each, GiB.", min=4)] = 80,
    context: Annotated[
        int | None,
        typer.Option(
            help=f"Longest prompt and answer together, tokens. Default: {CONTEXT:,}, or the model's longest.", min=256
        ),
    ] = None,
    rank: Annotated[int, typer.Option(help="Largest LoRA rank that policies may have.", min=1, max=256)] = 16,
    policies: Annotated[int, typer.Option(help="Policies that are used at once.", min=1)] = 1,
    concurrency: Annotated[int, typer.Option(help="Requests at once.", min=1)] = 64,
    experts: Annotated[bool, typer.Option("--experts", help="Policies adapt the experts of a mixture, too.")] = False,
    tool_call_parser: ToolOption = AUTO,
    reasoning_parser: ReasoningOption = AUTO,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Say what a model needs on these GPUs, and how to serve it there. Asks no network and no GPU.

    Ends with status 1 if it does not fit.
    """
    shape, context = ModelShape.find(model), _context(model, context)
    workload = Workload(model, shape, gpus, gpu_memory, context, rank, policies, concurrency, experts=experts)
    plan = make_plan(workload)
    names = {TOOL_FLAG: tool_call_parser, REASONING_FLAG: reasoning_parser}
    flags = [word for flag, name in names.items() if name != AUTO for word in (flag, name)]
    line = " ".join([plan.command, *flags]) if plan.fits else ""
    if as_json:
        print(json.dumps(_facts(plan, line), indent=2))
        if not plan.fits:
            raise typer.Exit(1)
        return
    console = Console(emoji=False, highlight=False, soft_wrap=True)
    console.print(
        f"For {gpus} × {gpu_memory:g} GiB of GPU memory (--gpus, --gpu-memory). This machine was not looked at."
    )
    engine = f"{plan.engines} engine{'s' if plan.engines > 1 else ''}, each on {plan.tensor} GPU"
    console.print(_table(f"{engine}{'s' if plan.tensor > 1 else ''} (GiB of one GPU)", plan.engine_items, plan.kv_gib))
    where = f"{plan.trainer} GPU{'s' if plan.trainer > 1 else ''}" if plan.trainer else "the engine's GPU"
    where += ", by turns" if plan.turns else ""
    console.print(_table(f"trainer on {where} (GiB of one GPU)", plan.trainer_items))
    if not plan.fits:
        console.print(f"[red]This does not fit[/red] {gpus} × {gpu_memory:g} GiB. {plan.shortage}")
        if changes := remedies(workload):
            console.print(f"It would with {', or with '.join(changes)}.")
        raise typer.Exit(1)
    if plan.turns:
        console.print(
            f"Engine and trainer take turns: vLLM sleeps while a step is computed, and requests wait for it. Whichever "
            f"rests is in main memory, {plan.main_memory_gib:.0f} GiB for both."
        )
    full_requests = plan.kv_tokens // context
    console.print(
        f"KV cache: {workload.shape.kv_bytes_per_token / 1024:.0f} KiB a token, {plan.kv_tokens:,} tokens in all: "
        f"{full_requests} requests of full length at once"
        + (f"; {concurrency} wait for one another, unless they share prefixes." if full_requests < concurrency else ".")
    )
    console.print(f"adapters: {', '.join(workload.targets)}", markup=False)
    if why := _experts_refused(workload):
        console.print(f"[yellow]The server refuses policies that adapt the experts of this model:[/yellow] {why}.")
    console.print("\n".join(_parser_lines(model, tool_call_parser, reasoning_parser)), markup=False)
    console.print("\n" + line, markup=False)


def _context(model: str, context: int | None) -> int:
    """The longest context to plan. Raises ConfigError where the model allows no such one."""
    directory = present_directory(model, Home.find().cache)
    longest = (ModelFiles(directory).context if directory else None) or max(context or 0, CONTEXT)
    if context is not None and context > longest:
        raise ConfigError(f"--context {context}: {model} allows {longest:,} tokens at most")
    return context or min(CONTEXT, longest)


def _facts(plan: Plan, line: str) -> dict[str, Any]:
    """The plan as JSON. GiB are those of one GPU."""
    return {
        "fits": plan.fits,
        "why_not": None if plan.fits else plan.shortage,
        "remedies": [] if plan.fits else remedies(plan.workload),
        "command": line if plan.fits else None,
        "engines": {
            "count": plan.engines,
            "gpus_each": plan.tensor,
            "gib": {item.name: item.gib for item in plan.engine_items},
            "kv_cache_gib": plan.kv_gib,
        },
        "trainer": {
            "gpus": plan.trainer,
            "turns": plan.turns,
            "gib": {item.name: item.gib for item in plan.trainer_items},
        },
        "targets": list(plan.workload.targets),
        "experts_refused": _experts_refused(plan.workload),
        "kv_tokens": plan.kv_tokens,
        "main_memory_gib": plan.main_memory_gib,
    }


def _experts_refused(workload: Workload) -> str | None:
    """Why no vLLM applies adapters of the experts that are planned for; None: it does, or there are none."""
    if not workload.experts or (mixture := workload.shape.experts) is None:
        return None
    return experts_obstacle(mixture.model_type, workload.shape.targets, workload.targets, gpus=True)


def _parser_lines(model: str, tools: str, reasoning: str) -> list[str]:
    """Which parsers the server will choose, and why."""
    cache = Home.find().cache
    if directory := present_directory(model, cache):
        return parsers_of(directory, cache, tools=tools, reasoning=reasoning).lines()
    check_parser_names(cache, tools=tools, reasoning=reasoning)
    later = "chosen when the model is on this machine, by its chat template: `art-langgraph doctor` says it beforehand"
    return [f"{what}: {later if name == AUTO else name}" for what, name in (("tools", tools), ("reasoning", reasoning))]


def _table(title: str, items: list[Item], kv_gib: float | None = None) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("what")
    table.add_column("GiB", justify="right")
    table.add_column("how", style="dim")
    for item in items:
        table.add_row(item.name, f"{item.gib:.2f}", item.how)
    table.add_row("sum", f"{sum(item.gib for item in items):.2f}", "", style="bold")
    if kv_gib is not None:
        table.add_row("left for the KV cache", f"{kv_gib:.2f}", "")
    return table


def register(app: typer.Typer) -> None:
    """Adds the command to `art-langgraph`."""
    app.command("plan")(plan_command)
