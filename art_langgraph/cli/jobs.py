"""`art-langgraph jobs list | cancel`: training requests on the trainer server."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art_langgraph.cli.options import JsonOption, several, short_patience
from art_langgraph.cli.printing.lists import print_json, print_table, shorten
from art_langgraph.progress import losses
from trainer_server.wire import ConfigError, Job, JobStatus

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient

_SEARCHED = 1000
"""How many of the newest jobs are searched for the first characters of an id."""

app = typer.Typer(help="Training steps and warm starts on the trainer server: list, cancel.", no_args_is_help=True)


@app.command("list")
def list_command(
    limit: Annotated[int, typer.Option(help="How many, newest first.", min=1, max=1000)] = 20,
    status: Annotated[JobStatus | None, typer.Option(help="Only jobs with this status.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first.

    Example: art-langgraph jobs list --status queued
    """

    async def jobs() -> list[Job]:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient(retry_for=short_patience()) as trainer:
            return await trainer.jobs(limit=limit, status=status)

    listed = asyncio.run(jobs())
    if as_json:
        print_json([job.model_dump(mode="json") for job in listed])
    else:
        print_table([_row(job) for job in listed], ["id", "time", "kind", "policy", "status", "seconds", "outcome"])


@app.command("cancel")
def cancel_command(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="Id of a job. The first characters suffice if they are unique.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Cancel a queued or running step or warm start. The policy stays as it is.

    A running job is broken off: the trainer is ended and started again, which takes as long as its start.

    Example: art-langgraph jobs cancel 0198c1
    """

    async def cancel() -> Job:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient(retry_for=short_patience()) as trainer:
            return await trainer.cancel(await _find_job(trainer, job))

    cancelled = asyncio.run(cancel())
    if as_json:
        print_json(cancelled.model_dump(mode="json"))
    else:
        print(f"{cancelled.id} on policy {cancelled.policy} is {cancelled.status}")


async def _find_job(trainer: TrainerClient, prefix: str) -> str:
    """The id of the job whose id begins with `prefix`. Raises ConfigError for no job, and for several."""
    ids = [job.id for job in await trainer.jobs(limit=_SEARCHED) if job.id.startswith(prefix)]
    if len(ids) == 1 or prefix in ids:
        return prefix if prefix in ids else ids[0]
    if ids:
        raise ConfigError(several(prefix, ids))
    raise ConfigError(f"no job {prefix!r}; `art-langgraph jobs list` shows the jobs of this server")


def _row(job: Job) -> dict[str, Any]:
    outcome = job.error or ""
    if job.result:
        outcome = f"version {job.result.version}"
        if skipped := job.result.metrics.get("skipped"):
            outcome += f", skipped: {skipped}"
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


def register(root: typer.Typer) -> None:
    """Adds these commands to `art-langgraph`."""
    root.add_typer(app, name="jobs")
