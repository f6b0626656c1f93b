"""Records the answers of an MCP server in a file, and replays them: rollouts are then offline and reproducible."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from art_mcp.canonical import canonical
from art_mcp.client.connection.sdk import Progress
from art_mcp.client.live import Source, ending_rollout
from trainer_server.common.jsonl import append_jsonl, read_jsonl, to_json
from trainer_server.wire import ConfigError, MCPError

log = logging.getLogger("art_mcp")

Mode = Literal["record", "replay", "auto"]


@dataclass(slots=True)
class _Run:
    """The state of a rollout that uses the cassette, or of all calls of a connection outside of rollouts.

    Args:
        label: Identifies the run in the file.
        history: Digest of the tool calls so far.
        request_counts: Number of requests so far, by the key of the request.
    """

    label: str
    history: str = ""
    request_counts: Counter[str] = field(default_factory=Counter)

    def step(self, method: str, key: str) -> None:
        """Counts a request. key: its method and parameters as canonical JSON."""
        self.request_counts[key] += 1
        if method == "tools/call":
            self.history = hashlib.sha256(f"{self.history}\n{key}".encode(errors="surrogatepass")).hexdigest()


class Cassette:
    """A JSONL file of requests and answers: `connect(server, cassette=Cassette("time.jsonl", "replay"))`.

    A rollout gets the recorded answer to the same tool call after the same earlier calls. So the state of a server is
    replayed as well. If no recorded run has made the same earlier calls, the cassette takes the recorded run that made
    this call most often. It gives the answers of that run in order, and repeats the last one.

    The file is only appended to, one line at a time. Incomplete lines, which a killed process may leave, are skipped.
    Of two answers to the same call, a replay gives the earlier one: delete the file to record a server anew.

    Args:
        path: The JSONL file.
        mode: "record" asks the server and writes its answers. "replay" needs no server; a request that was not recorded
            raises an MCPError with the failure `missing` (a tool call gives a result with `is_error`). "auto" replays
            recorded answers, asks the server for all others and writes them; this suits servers without a state.

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
        elif self.path.exists():
            log.warning("the cassette %s exists: what is recorded is added, and replays prefer what it has", self.path)

    def over(self, live: Source) -> Source:
        """A source that answers from the file, from `live`, or from both, depending on the mode."""
        return _TapedSource(self, live)

    def find(self, run: _Run, key: str) -> dict[str, Any] | None:
        """The recorded line that answers a request.

        Args:
            run: The run that makes the request.
            key: Method and parameters of the request as canonical JSON.

        Returns:
            The line. None: the request was not recorded.
        """
        if line := self._after.get((run.history, key)):
            return line
        runs = self._in_order.get(key)
        lines = max(runs.values(), key=len) if runs else None
        return lines[min(run.request_counts[key], len(lines) - 1)] if lines else None

    def write(self, run: _Run, method: str, params: Mapping[str, Any], outcome: dict[str, Any]) -> None:
        """Appends an answer to the file.

        Args:
            run: The run that made the request.
            method: Method of the request.
            params: Parameters of the request.
            outcome: `{"result": …}`, or `{"error": {"message": …, "code": …}}`.
        """
        line = {"run": run.label, "method": method, "params": dict(params), **outcome}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_jsonl(self.path, [line])
        self._add(line)

    def _load(self) -> None:
        """Reads the file. Invalid lines are skipped with a warning."""
        for _ in read_jsonl(
            self.path, self._add, what="recorded answer", skip=lambda wrong: log.warning("skipped: %s", wrong)
        ):
            pass

    def _add(self, line: dict[str, Any]) -> None:
        """Indexes a line. Raises ValueError, KeyError or TypeError if it is invalid."""
        if not isinstance(line.get("result", line.get("error")), dict):
            raise ValueError("neither a result nor an error")
        key = canonical([line["method"], line["params"]])
        run = self._recorded.setdefault(line["run"], _Run(line["run"]))
        if line["method"] == "tools/call":
            self._after.setdefault((run.history, key), line)
        self._in_order[key][run.label].append(line)
        run.step(line["method"], key)


class _TapedSource:
    """A source that a cassette records or replaces."""

    def __init__(self, cassette: Cassette, live: Source) -> None:
        self._cassette = cassette
        self._live = live
        self._runs: dict[str, _Run] = {}

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        run, key = self._run(), canonical([method, params])
        line = self._cassette.find(run, key) if self._cassette.mode != "record" else None
        if line is None and self._cassette.mode == "replay":
            raise MCPError(
                f"the cassette {self._cassette.path} has no answer to {method} {to_json(dict(params))}; "
                "record it with mode='auto'",
                failure="missing",
            )
        outcome = line or await self._request_live(run, method, params, progress)
        run.step(method, key)
        if error := outcome.get("error"):
            raise MCPError(error["message"], code=error.get("code"))
        result: dict[str, Any] = outcome["result"]
        return result

    async def changes(self) -> None:
        return None

    async def rewind(self) -> bool:
        return False

    async def close(self) -> None:
        await self._live.close()

    async def _request_live(
        self, run: _Run, method: str, params: Mapping[str, Any], progress: Progress | None
    ) -> dict[str, Any]:
        """Asks the live server, records the outcome, and returns it."""
        outcome: dict[str, Any]
        try:
            outcome = {"result": await self._live.request(method, params, progress)}
        except MCPError as error:
            if error.failure != "protocol":  # the server did not answer, so there is nothing to record
                raise
            outcome = {"error": {"message": error.message, "code": error.code}}
        self._cassette.write(run, method, params, outcome)
        return outcome

    def _run(self) -> _Run:
        """The run of the current rollout, or that of the calls outside of rollouts."""
        rollout = ending_rollout()
        key = rollout.rollout_id if rollout else ""
        if key not in self._runs:
            self._runs[key] = _Run(key or f"co-{uuid.uuid4().hex}")
            if rollout and rollout.exits:
                rollout.exits.callback(self._runs.pop, key)
        return self._runs[key]
