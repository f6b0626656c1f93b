"""`art-langgraph policies | export | fork | score-version | promote | jobs`: what a server trains, and its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art_langgraph.cli.options import JsonOption, ask_server, several
from art_langgraph.cli.printing import print_json, print_outcome, print_table, shorten
from art_langgraph.progress import losses
from trainer_server.wire import LATEST, ConfigError, ExportFormat, Job, JobStatus, Policy, Version, version_number

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient


_VersionArgument = Annotated[
    str,
    typer.Argument(
        metavar="POLICY[@N]",
        help="A version, such as agent@3, or agent@latest; without @N the promoted version, else the newest.",
    ),
]


async def _find_version(trainer: TrainerClient, version: str) -> tuple[str, int]:
    policy, at, text = version.partition("@")
    if at:
        if text == LATEST:
            return policy, (await trainer.policy(policy)).latest
        if (number := version_number(text)) is None:
            raise ConfigError(f"{version!r} is no version: write POLICY@N with a number, or POLICY@latest")
        return policy, number
    return policy, (await trainer.policy(policy)).served


app = typer.Typer(invoke_without_command=True)


@app.callback()
def policies_command(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the policies of the trainer server, with their newest versions. `create` makes one, `delete` deletes one."""
    if context.invoked_subcommand is not None:
        return

    policies = ask_server(_policies_with_versions)
    rows = [_policy_row(policy, versions) for policy, versions in policies]
    if as_json:
        print_json(rows)
        return
    canary = ["candidate", "share"] if any(row["candidate"] is not None for row in rows) else []
    columns = ["policy", "newest", "promoted", *canary, "rank", "base model", "reward of the last step"]
    print_table(rows, columns, whole=["policy"])
    for policy, _ in policies:
        for problem in policy.quarantined.values():
            print(problem)


async def _policies_with_versions(trainer: TrainerClient) -> list[tuple[Policy, list[Version]]]:
    return [(policy, await trainer.versions(policy.name)) for policy in await trainer.policies()]


def _policy_row(policy: Policy, versions: Sequence[Version]) -> dict[str, Any]:
    reward = versions[-1].metrics.get("reward_mean") if versions else None
    return {
        "policy": policy.name,
        "newest": policy.latest,
        "promoted": policy.promoted,
        "candidate": policy.candidate.version if policy.candidate else None,
        "share": policy.candidate.share if policy.candidate else None,
        "rank": policy.spec.rank,
        "base model": policy.base_model,
        "reward of the last step": reward if isinstance(reward, float) else None,
    }


@app.command("create")
def create_command(
    name: Annotated[str, typer.Argument(help="Letters, digits, `.`, `_`, `-`; not the base model's name.")],
    rank: Annotated[
        int | None, typer.Option(help="LoRA rank: 1, 8, 16, 32, 64, 128 or 256; default 8.", show_default=False)
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="LoRA scale: the adapter adds (alpha / rank)·B·A; default 16.", show_default=False),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="Linear layers that get an adapter, such as q_proj, or attention; once for each. Default: all.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the first weights; default 0.", show_default=False)] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Sampling temperature in place of the one that a graph sets. A graph with temperature 0 gives equal "
            "runs, which teach nothing: give 1.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a policy: a LoRA adapter on the server's base model, untrained. A policy that exists stays as it is.

    A policy that exists with other values is an error. `fork` creates one from a version of another policy.

    Example: art-langgraph policies create agent --rank 16
    """
    policy = ask_server(
        lambda trainer: trainer.create_policy(
            name, rank=rank, alpha=alpha, targets=target, seed=seed, temperature=temperature
        )
    )
    sampling = "" if policy.spec.temperature is None else f", temperature {policy.spec.temperature:g}"
    text = f"{policy.name}: rank {policy.spec.rank}{sampling}, on {policy.base_model}, at version {policy.latest}"
    print_outcome(policy.model_dump(mode="json"), text, as_json)


def export_command(
    version: _VersionArgument,
    output: Annotated[Path | None, typer.Option(help="Directory to write; default: POLICY-N-FORMAT.")] = None,
    format: Annotated[
        ExportFormat,
        typer.Option(help="peft: the adapter. merged: adapter and base in one model. gguf: that model for llama.cpp."),
    ] = "peft",
    force: Annotated[bool, typer.Option("--force", help="Write into a directory that has files already.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a version into a directory, with a model card: for PEFT and vLLM, for transformers, or for llama.cpp.

    Example: art-langgraph export agent@3 --format merged --output my-model
    """

    async def export(trainer: TrainerClient) -> tuple[str, int, Path]:
        policy, number = await _find_version(trainer, version)
        directory = output or Path(f"{policy}-{number}-{format}")
        return policy, number, await trainer.export(policy, number, directory, format, force=force, progress=True)

    policy, number, directory = ask_server(export)
    record = {"policy": policy, "version": number, "format": format, "directory": str(directory)}
    print_outcome(record, str(directory), as_json)


def fork_command(
    version: _VersionArgument,
    name: Annotated[str, typer.Argument(help="The new policy.")],
    optimizer: Annotated[
        bool, typer.Option(help="Continue with that version's optimizer, or with a new one (--no-optimizer).")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Create a policy from a version of another policy. From then on, each is trained and served on its own.

    Example: art-langgraph fork agent@3 agent-brief
    """

    async def fork(trainer: TrainerClient) -> tuple[Policy, str]:
        policy, number = await _find_version(trainer, version)
        return await trainer.fork(policy, number, name, optimizer=optimizer), f"{policy}@{number}"

    policy, origin = ask_server(fork)
    text = f"{policy.name}@0 is {origin}; {policy.name} is at version {policy.latest}"
    print_outcome(policy.model_dump(mode="json"), text, as_json)


def score_command(
    version: _VersionArgument,
    score: Annotated[float, typer.Argument(help="Larger is better.")],
    as_json: JsonOption = False,
) -> None:
    """Record how good a version is. A server with --keep-versions never deletes the best version.

    Example: art-langgraph score-version agent@3 0.82
    """

    async def send_score(trainer: TrainerClient) -> tuple[str, int]:
        policy, number = await _find_version(trainer, version)
        await trainer.score_version(policy, number, score)
        return policy, number

    policy, number = ask_server(send_score)
    print_outcome({"policy": policy, "version": number, "score": score}, f"{policy}@{number}: {score:g}", as_json)


def promote_command(
    version: Annotated[str, typer.Argument(metavar="POLICY[@N]", help="The version, such as agent@3 or agent@latest.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="The name means the newest version again, and each that comes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Promote a version: the policy's name means it from now on, and POLICY@latest the newest.

    Until a version is promoted, the name of a policy means its newest version. Rollouts that have begun keep theirs.

    Example: art-langgraph promote agent@3
    """
    if undo == ("@" in version):
        raise ConfigError(f"{version}: write POLICY@N to promote a version, or POLICY --undo to take that back")

    async def promote(trainer: TrainerClient) -> Policy:
        return await trainer.promote(*(version, None) if undo else await _find_version(trainer, version))

    policy = ask_server(promote)
    name = policy.name
    newest = "as long as none is newer" if undo else f"{name}@latest is {name}@{policy.latest}"
    print_outcome(policy.model_dump(mode="json"), f"{name} is {name}@{policy.served}, {newest}", as_json)


_MOST_JOBS = 1000
"""How many of the newest jobs are searched for the first characters of an id."""

jobs_app = typer.Typer(help="Training steps and warm starts on the trainer server: list, cancel.", no_args_is_help=True)


@jobs_app.command("list")
def list_jobs_command(
    limit: Annotated[int, typer.Option(help="How many, newest first.", min=1, max=1000)] = 20,
    status: Annotated[JobStatus | None, typer.Option(help="Only jobs with this status.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first.

    Example: art-langgraph jobs list --status queued
    """
    jobs = ask_server(lambda trainer: trainer.jobs(limit=limit, status=status))
    if as_json:
        print_json([job.model_dump(mode="json") for job in jobs])
    else:
        print_table([_job_row(job) for job in jobs], ["id", "time", "kind", "policy", "status", "seconds", "outcome"])


@jobs_app.command("cancel")
def cancel_job_command(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="Id of a job. The first characters suffice if they are unique.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Cancel a queued or running step or warm start. The policy stays as it is.

    A running job is broken off: the trainer is ended and started again, which takes as long as its start.

    Example: art-langgraph jobs cancel 0198c1
    """

    async def cancel(trainer: TrainerClient) -> Job:
        return await trainer.cancel(await _find_job(trainer, job))

    state = ask_server(cancel)
    print_outcome(state.model_dump(mode="json"), f"{state.id} on policy {state.policy} is {state.status}", as_json)


async def _find_job(trainer: TrainerClient, prefix: str) -> str:
    """The id of the job whose id begins with `prefix`. Raises ConfigError for no job, and for several."""
    ids = [job.id for job in await trainer.jobs(limit=_MOST_JOBS) if job.id.startswith(prefix)]
    if len(ids) == 1 or prefix in ids:
        return prefix if prefix in ids else ids[0]
    if ids:
        raise ConfigError(several(prefix, ids))
    raise ConfigError(f"no job {prefix!r}; `art-langgraph jobs list` shows the jobs of this server")


def _job_row(job: Job) -> dict[str, Any]:
    outcome = job.error or ""
    if job.result:
        outcome = f"version {job.result.version}"
        if reason := job.result.metrics.get("skipped"):
            outcome += f", skipped: {reason}"
    elif job.progress is not None:
        outcome = ", ".join(filter(None, (f"{job.progress:.0%} done", losses(job.measured))))
    return {
        "id": job.id,
        "time": datetime.fromtimestamp(job.created).strftime("%m-%d %H:%M:%S"),
        "kind": job.kind,
        "policy": job.policy,
        "status": job.status.value,
        "seconds": f"{job.finished - job.created:.1f}" if job.finished else "",
        "outcome": shorten(outcome, 120),
    }
