"""Exports of other systems → runs. One entry of `FORMATS` a system."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from art_langgraph.traces import langfuse, langsmith, openai_jsonl, otel
from art_langgraph.traces.grouping import Grouping, Parts, RunPart
from art_langgraph.traces.problems import Skips, Unreadable
from art_langgraph.traces.records import read_records
from art_langgraph.traces.run import ForeignRun
from trainer_server.common.jsonl import explain
from trainer_server.wire import ConfigError


@dataclass(frozen=True, slots=True)
class Format:
    """How the exports of a system are read."""

    parts: Callable[[Any], Parts]
    """The parts of runs in one record. Raises Unreadable, and what a record of another form raises."""
    run: Callable[[str, Sequence[RunPart]], ForeignRun]
    """Makes a run of its parts. Raises the same."""
    orphan: Unreadable
    """Says what a part without a run is."""


FORMATS: Mapping[str, Format] = {
    "langsmith": Format(
        langsmith.parts,
        langsmith.run,
        Unreadable("pieces of feedback for runs that are not in the file", "export these runs too"),
    ),
    "langfuse": Format(
        langfuse.parts,
        langfuse.run,
        Unreadable("scores of sessions or datasets, which belong to no single run", ""),
    ),
    "otel": Format(otel.parts, otel.run, Unreadable("log records outside of any trace", "")),
    "openai-jsonl": Format(openai_jsonl.parts, openai_jsonl.run, Unreadable("messages without a completion", "")),
}
"""Formats by the name of their system."""


def read_runs(
    system: str,
    *paths: str | Path,
    skips: Skips | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[ForeignRun]:
    """Reads the runs of an export. What cannot be read is left out, and noted.

    Args:
        system: A key of `FORMATS`.
        paths: Files of one export: runs and feedback, or requests and answers, may be in files of their own.
        skips: Gets what was left out.
        advance: Is called with the number of bytes that were read until now, of all files.

    Raises:
        ConfigError: There is no such system, or a file cannot be read.
    """
    skips = Skips() if skips is None else skips
    if system not in FORMATS:
        raise ConfigError(f"there is no system {system!r}: {', '.join(FORMATS)}")
    form = FORMATS[system]
    with Grouping() as grouping:
        before = 0
        for path in map(Path, paths):
            for line, value in read_records(path, skips, partial(_advance, advance, before)):
                for problem in _add(partial(form.parts, value), grouping, line):
                    skips.note(_wrap_error(problem, system), line)
            before += path.stat().st_size
            advance(before)
        for key, parts in grouping.runs():
            if key is None:
                for part in parts:
                    skips.note(form.orphan, part.line)
                continue
            try:
                run = form.run(key, parts)
            except (Unreadable, *_OTHER_FORM) as error:
                skips.note(_wrap_error(error, system), parts[0].line)
            else:
                run.line = parts[0].line
                yield run


_OTHER_FORM = (
    ValidationError,
    TypeError,
    KeyError,
    ValueError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)
"""What a reader raises for a record that has not the form of its system."""


def _add(read: Callable[[], RunPart | Parts], grouping: Grouping, line: int) -> Iterator[Exception]:
    """Adds the parts of a record. Yields what is wrong with those that cannot be read."""
    try:
        parts = read()
        for part in (parts,) if isinstance(parts, RunPart) else parts:
            if isinstance(part, RunPart):
                grouping.add(part, line)
            else:
                yield from _add(part, grouping, line)
    except (Unreadable, *_OTHER_FORM) as error:
        yield error


def _wrap_error(error: Exception, system: str) -> Unreadable:
    if isinstance(error, Unreadable):
        return error
    others = ", ".join(name for name in FORMATS if name != system)
    return Unreadable(
        f"records that are none of {system} ({explain(error)})", f"is it an export of another system ({others})?"
    )


def _advance(advance: Callable[[int], None], before: int, count: int) -> None:
    advance(before + count)
