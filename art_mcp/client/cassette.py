"""A server's answers on a tape: rollouts offline, and the same every time."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from art_mcp.canonical import canonical
from art_mcp.client.sdk import Progress
from art_mcp.client.session import Source, ending_rollout
from trainer_server.wire import ConfigError, MCPError

log = logging.getLogger("art_mcp")

Mode = Literal["record", "replay", "auto"]


@dataclass(slots=True)
class _Run:
    """One rollout at the tape, or a whole connection outside of any. history: digest of its calls so far."""

    label: str
    history: str = ""
    asked: Counter[str] = field(default_factory=Counter)

    def step(self, method: str, key: str) -> None:
        self.asked[key] += 1
        if method == "tools/call":
            self.history = hashlib.sha256(f"{self.history}\n{key}".encode()).hexdigest()


class Cassette:
    """A JSONL file of requests and answers: `connect(server, cassette=Cassette("time.jsonl", "replay"))`.

    Every rollout begins at the start of the tape. What it gets is what the server answered to the same call after the
    same calls before, so that a server's state is replayed as well. Where no recorded run has that history, it gets
    the answers to that call in the order of the run that made it most often, and the last of them from then on.

    The file is only ever appended to, a line at a time. A line that a kill cut short is skipped.

    Args:
        path: The JSONL file.
        mode: "record" asks the server and writes its answers. "replay" needs no server; a request that was not recorded
            is an MCPError with the failure `missing` (for a tool call, a result with `is_error`). "auto" replays what
            was recorded, asks the server for the rest and writes it, which suits servers without a state.

    Raises:
        ConfigError: The mode is unknown, or there is no file to replay.
    """

    def __init__(self, path: str | Path, mode: Mode = "auto") -> None:
        if mode not in ("record", "replay", "auto"):
            raise ConfigError(f"mode={mode!r} of a cassette is none of record, replay, auto")
        self.path = Path(path)
        self.mode = mode
        self._after: dict[tuple[str, str], dict[str, Any]] = {}
        self._in_order: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
        self._recorded: dict[str, _Run] = {}
        if mode == "replay" and not self.path.exists():
            raise ConfigError(f"there is no cassette {self.path}: record one with mode='record' or 'auto'")
        if mode != "record" and self.path.exists():
            self._load()

    def over(self, live: Source) -> Source:
        """A source that answers from the tape, from `live`, or both, as the mode says."""
        return _Taped(self, live)

    def find(self, run: _Run, key: str) -> dict[str, Any] | None:
        """The line that answers a request in a run; None: there is none."""
        if found := self._after.get((run.history, key)):
            return found
        runs = self._in_order.get(key)
        lines = max(runs.values(), key=len) if runs else None
        return lines[min(run.asked[key], len(lines) - 1)] if lines else None

    def write(self, run: _Run, method: str, params: Mapping[str, Any], outcome: dict[str, Any]) -> None:
        """Appends an answer, `{"result"}` or `{"error"}`."""
        line = {"run": run.label, "method": method, "params": dict(params), **outcome}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(file).st_size
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"  # by a kill: what is there becomes a line to skip
            data = ("\n" * torn + json.dumps(line, ensure_ascii=False) + "\n").encode()
            while data:  # one write, but for a disk that takes less at a time
                data = data[os.write(file, data) :]
        finally:
            os.close(file)
        self._add(line)

    def _load(self) -> None:
        for number, text in enumerate(self.path.read_bytes().split(b"\n"), start=1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
                self._add(line)
            except (ValueError, KeyError, TypeError):
                log.warning("%s, line %d is no recorded answer, and is skipped", self.path, number)

    def _add(self, line: dict[str, Any]) -> None:
        if not isinstance(line.get("result", line.get("error")), dict):
            raise ValueError("neither a result nor an error")
        key = canonical([line["method"], line["params"]])
        run = self._recorded.setdefault(line["run"], _Run(line["run"]))
        if line["method"] == "tools/call":
            self._after.setdefault((run.history, key), line)
        self._in_order[key][run.label].append(line)
        run.step(line["method"], key)


class _Taped:
    """A source behind a cassette."""

    def __init__(self, cassette: Cassette, live: Source) -> None:
        self._cassette = cassette
        self._live = live
        self._runs: dict[str, _Run] = {}

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        run, key = self._run(), canonical([method, params])
        line = self._cassette.find(run, key) if self._cassette.mode != "record" else None
        if line is None and self._cassette.mode == "replay":
            raise MCPError(
                f"the cassette {self._cassette.path} has no answer to {method} {json.dumps(dict(params))}; "
                "record it with mode='auto'",
                failure="missing",
            )
        outcome = line or await self._ask(run, method, params, progress)
        run.step(method, key)
        if error := outcome.get("error"):
            raise MCPError(error["message"], code=error.get("code"))
        result: dict[str, Any] = outcome["result"]
        return result

    async def close(self) -> None:
        await self._live.close()

    async def _ask(
        self, run: _Run, method: str, params: Mapping[str, Any], progress: Progress | None
    ) -> dict[str, Any]:
        outcome: dict[str, Any]
        try:
            outcome = {"result": await self._live.request(method, params, progress)}
        except MCPError as error:
            if error.failure != "protocol":  # no answer of the server: nothing to replay
                raise
            outcome = {"error": {"message": str(error), "code": error.code}}
        self._cassette.write(run, method, params, outcome)
        return outcome

    def _run(self) -> _Run:
        rollout = ending_rollout()
        key = rollout.rollout_id if rollout else ""
        if key not in self._runs:
            self._runs[key] = _Run(key or f"co-{uuid.uuid4().hex}")
            if rollout and rollout.exits:
                rollout.exits.callback(self._runs.pop, key)
        return self._runs[key]
