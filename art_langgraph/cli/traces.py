"""`art-langgraph import …`: runs that other systems recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.cli.options import JsonOption, SinceFilter
from art_langgraph.cli.printing import print_json
from trainer_server.common.options import with_flags
from trainer_server.wire import ConfigError
from trainer_server.wire.text import quantity

if TYPE_CHECKING:
    from art_langgraph.traces import ImportSummary

app = typer.Typer(
    help="Import runs of another system: as scenarios, demonstrations and rewards. Each system's --help says where its "
    "export is found.",
    no_args_is_help=True,
)


@dataclass(frozen=True, kw_only=True)
class ImportFlags(SinceFilter):
    """Which runs are imported, and where to.

    Args:
        into: Store of the runs: a file, or postgresql://…; default: as ART_STORE says.
        scenarios: JSONL file of their tasks; default: NAME.scenarios.jsonl here.
        demonstrations: JSONL file of their conversations, for `sft`; default: NAME.demonstrations.jsonl here.
        feedback: Name of the feedback that is the reward. Needed where runs have several.
        min_reward: Least reward of a demonstration; default: above 0. Runs without a reward are demonstrations.
        system_messages: Whether scenarios have system messages. A graph with its own needs --no-system.
        limit: How many runs at most.
        dry_run: Count only; write nothing.
    """

    into: str | None = None
    scenarios: Path | None = None
    demonstrations: Path | None = None
    feedback: str | None = None
    min_reward: float | None = None
    system_messages: bool = field(default=True, metadata={"flag": "--system/--no-system"})
    limit: int | None = field(default=None, metadata={"min": 1})
    dry_run: bool = False


_ABOUT = {
    "langsmith": """Import runs or trajectories of LangSmith: JSONL of the SDK, or Parquet of a bulk export.

    By the SDK, whose `runs.query` needs the fields' names, and takes the last day where it is not told otherwise:

        import asyncio
        from langsmith import Client
        FIELDS = "ID TRACE_ID PARENT_RUN_IDS NAME RUN_TYPE START_TIME END_TIME INPUTS OUTPUTS ERROR".split()
        FIELDS += "EXTRA METADATA TAGS FEEDBACK_STATS".split()
        async def main():
            client = Client()
            ids = \\[str(client.read_project(project_name="my-project").id)]
            with open("runs.jsonl", "w", encoding="utf-8") as file:
                since = "2026-11-01T00:00:00Z"
                async for run in client.runs.query(project_ids=ids, selects=FIELDS, min_start_time=since):
                    file.write(run.model_dump_json() + "\\n")
        asyncio.run(main())

    Runs of the older `client.list_runs`, and feedback of `client.list_feedback` beside them, are read as well.

    By a bulk export (Settings → Bulk exports): one .parquet file, or several. Runs of all types are needed, not only
    root runs: demonstrations come from runs of type llm.

    Trajectories are read, too: answers of POST /v1/trajectory ("format": "ui"), and examples of a dataset of smithtune.
    A trajectory has no feedback. See docs/moving/smithtune.md.

    Example: art-langgraph import langsmith runs.jsonl --feedback user_score
    """,
    "langfuse": """Import traces of Langfuse: observations and scores.

    Blob storage export (Project Settings → Integrations → Blob Storage): the files of observations_v2/ and scores/;
    those of the older traces/ and observations/ too. JSONL, JSON or Parquet, with the field groups core, basic and io.
    Downloaded traces ("Download JSON" in a trace) and exported tables of observations (JSON) are read as well; so are
    pages of GET /api/public/v2/observations (fields=core,basic,io,metadata) and /api/public/v3/scores (fields=subject).

    Example: art-langgraph import langfuse observations.jsonl.gz scores.jsonl.gz --feedback helpfulness
    """,
    "otel": """Import traces of OpenTelemetry, in OTLP's JSON, with the GenAI conventions.

    By the file exporter of the collector, or by FileSpanExporter and FileLogExporter of the package
    opentelemetry-exporter-otlp-json-file. The instrumentation must record the messages:
    OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true; or SPAN_ONLY, where
    OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental is set. Where it writes them as events (conventions until
    1.36), the file of logs is needed too. Results of evaluations (gen_ai.evaluation.result) are feedback.

    Example: art-langgraph import otel traces.jsonl logs.jsonl
    """,
    "openai-jsonl": """Import OpenAI's JSON Lines: fine-tuning files, batches, stored completions.

    Fine-tuning files (chat, and preferences, of which the preferred answer counts) are read as they are. Of a batch,
    give the input and the output file. Stored completions: the objects of GET /v1/chat/completions, one a line, and
    those of GET /v1/chat/completions/ID/messages.

    Example: art-langgraph import openai-jsonl batch_input.jsonl batch_output.jsonl
    """,
}


def _command(system: str) -> Callable[..., None]:
    def command(
        files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files of one export, plain or gzipped.")],
        flags: Annotated[ImportFlags, None],
        as_json: JsonOption = False,
    ) -> None:
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

        from art_langgraph.progress import progress_bar
        from art_langgraph.store import TrajectoryStore
        from art_langgraph.traces import import_runs

        for file in files:
            if not file.is_file():
                raise ConfigError(f"{file} is no file: `art-langgraph import {system} --help` says how to export one")
        name = files[0].name.partition(".")[0]
        scenarios = flags.scenarios or Path(f"{name}.scenarios.jsonl")
        demonstrations = flags.demonstrations or Path(f"{name}.demonstrations.jsonl")
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with progress_bar(*columns, shown=sys.stderr.isatty()) as bar:
            task = bar.add_task(f"reading {name}", total=sum(file.stat().st_size for file in files))
            summary = import_runs(
                system,
                *files,
                store=TrajectoryStore(flags.into),
                scenarios=scenarios,
                demonstrations=demonstrations,
                feedback=flags.feedback,
                min_reward=flags.min_reward,
                system_messages=flags.system_messages,
                since=flags.moment(),
                limit=flags.limit,
                dry_run=flags.dry_run,
                advance=lambda count: bar.update(task, completed=count),
            )
        if as_json:
            print_json(summary.as_json())
        else:
            _print_summary(summary, scenarios, demonstrations, flags.dry_run)
        if not summary.read:
            raise typer.Exit(1)

    command.__doc__ = _ABOUT[system]
    return with_flags(command)


def _print_summary(summary: ImportSummary, scenarios: Path, demonstrations: Path, dry_run: bool) -> None:
    print(f"{quantity(summary.read, 'run')} read: {summary.runs}")
    print(f"scenarios: {summary.scenarios}{_in_file(summary.scenarios.count, scenarios)}")
    print(f"demonstrations: {summary.demonstrations}{_in_file(summary.demonstrations.count, demonstrations)}")
    print(f"rewards: {summary.rewards}")
    for reason in summary.skips:
        print(f"left out: {reason}")
    for reason in summary.gaps:
        print(f"read, but: {reason}")
    if dry_run:
        print("nothing was written (--dry-run)")
    elif not summary.read:
        print("no run was read")


def _in_file(count: int, path: Path) -> str:
    """Where something is; empty if nothing is, since there may be no file then."""
    return f", in {path}" if count else ""


for _system in _ABOUT:
    app.command(_system)(_command(_system))


def register(root: typer.Typer) -> None:
    """Adds these commands to `art-langgraph`."""
    root.add_typer(app, name="import")
