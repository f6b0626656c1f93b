"""Journal: what a specialization did, a line for each event, written when it happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from art_langgraph.llm.llm import Usage
from trainer_server.wire.jsonl import append_jsonl, read_jsonl


class Journal:
    """The events of a run, those of earlier processes included.

    Each event has `event`, `time` (Unix time), `spent` (seconds of the run until then), and `usage` where language
    models were asked. Events of a stage have its name in `stage`: "begin", "end", and between them "part" (of a
    measurement) and "step" (of the training).

    Args:
        path: The JSONL file. None: events are kept in memory only.

    Attributes:
        spent: Gives the seconds of the run until now.
        usage: Gives the usage of language models until now, by what they were asked for.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.seconds_spent: Callable[[], float] = lambda: 0.0
        self.usage: Callable[[], Mapping[str, Usage]] = dict
        self.events: list[dict[str, Any]] = []
        if path is not None and path.exists():  # a killed process may have left half of the last line
            self.events = list(read_jsonl(path, dict, what="event", skip=lambda _: None))

    def note(self, event: str, **facts: Any) -> None:
        """Adds an event. When this returns, the event survives a kill of the process.

        Args:
            event: Its name.
            **facts: What is to be known of it, as JSON values.
        """
        line = {"event": event, "time": round(time.time(), 3), "spent": round(self.seconds_spent(), 3), **facts}
        if usage := self.usage():
            line["usage"] = {name: asdict(each) for name, each in usage.items()}
        if self._path is not None:
            append_jsonl(self._path, [line])
        self.events.append(line)

    def of(self, event: str, stage: str) -> list[dict[str, Any]]:
        """The events of a name in a stage, oldest first."""
        return [line for line in self.events if line["event"] == event and line.get("stage") == stage]

    def end_event(self, stage: str) -> dict[str, Any] | None:
        """The event with which a stage ended. None: it has not."""
        return next(iter(self.of("end", stage)), None)

    @property
    def last(self) -> float:
        """Seconds of the run at the last event."""
        return max((float(line.get("spent", 0.0)) for line in self.events), default=0.0)

    @property
    def last_usage(self) -> dict[str, Usage]:
        """Usage of language models at the last event that has it."""
        usage: dict[str, Any] = next((line["usage"] for line in reversed(self.events) if "usage" in line), {})
        return {name: Usage(**each) for name, each in usage.items()}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage that has ended, all processes together."""
        seconds = {}
        for line in self.events:
            if line["event"] == "end" and (begun := self.of("begin", line["stage"])):
                seconds[line["stage"]] = line["spent"] - begun[0]["spent"]
        return seconds
