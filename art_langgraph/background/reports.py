"""Reports ended runs to the trainer server, for its dashboard: in the background, and never in the way.

The server has the tokens of a run, and knows no graph. So the client sends it the nodes, the tool calls, the rewards
and what judges said. Runs that wait are sent together. A run that cannot be sent is not lost: it is in the trajectory
store, and only the dashboard shows less of it. A warning names the first such run at once; when the process ends,
another one has their number and the reasons.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from art_langgraph.background.background import Background, at_exit
from art_langgraph.background.release import Server, token_of
from art_langgraph.client.outages import BUSY
from art_langgraph.client.proxies import ProxyTransport
from art_langgraph.messages import map_texts
from art_langgraph.notices import warn_once
from art_langgraph.redaction import redact
from art_langgraph.trajectory import Trajectory
from trainer_server.common import Connection
from trainer_server.common.jsonl import to_json
from trainer_server.wire import RunTrace, TracesTaken
from trainer_server.wire.text import beginning, quantity, writable

log = logging.getLogger("art_langgraph")

_TIMEOUT = httpx.Timeout(10.0, connect=2.0)
_GIVE_UP = 30.0
"""Seconds for which a run is sent again while no server answers, or it has no time."""
_MOST = 5000
"""Runs that may wait to be sent to a server. Later ones are left out."""
_MOST_IN_BATCH = 100
"""Runs in a request."""
_MOST_ADDRESSES = 10_000
"""Runs whose servers are remembered, to report them again."""
_CLOSE_TIMEOUT = 5.0
"""Seconds that a process which ends waits for what is not sent yet."""
_MOST_BYTES = 4 * 2**20
"""Size of a request with runs, as JSON. Texts of a run that is larger are cut."""
_MOST_TEXT = 20_000
"""Characters of a text in a run that is too large."""
OFF = "ART_REPORT_RUNS"
"""The environment variable that turns reports off, by `0`."""


@dataclass(frozen=True, slots=True)
class _Report:
    run: Trajectory
    server: Server
    since: float = field(default_factory=time.monotonic)


def report(run: Trajectory, run_servers: Collection[Server], otherwise: Connection | None = None) -> None:
    """Sends a run to the servers that it used. Never blocks, and never raises.

    Args:
        run: A run that has ended.
        run_servers: Address and key of each trainer server that the run has used.
        otherwise: The server that gets the report where the run used none; None: none.
    """
    servers: tuple[Server, ...] = tuple(run_servers)
    if not servers and otherwise is not None:
        servers = ((otherwise.url, otherwise.api_key),)
    if not servers or run.rollout_id is None or run.imported or os.environ.get(OFF) == "0":
        return
    with _lock:
        _servers_of[run.id] = servers
        while len(_servers_of) > _MOST_ADDRESSES:
            _servers_of.popitem(last=False)
        for server in servers:
            if server[0] not in _reports:
                _reports[server[0]] = Background("art-reports", _open_worker, pause=0.05)
    as_it_is = run.model_copy()
    for server in servers:
        reports, item = _reports[server[0]], _Report(as_it_is, server)
        if reports.waiting() >= _MOST:
            _not_sent([item], "too many wait", f"{_MOST:,} to be sent to {server[0]}")
        else:
            reports.put(item)


def report_again(run: Trajectory) -> None:
    """Reports a run that got another reward after its first report, to the same servers, which replace the first."""
    with _lock:
        servers = _servers_of.get(run.id, ())
    report(run, servers)


def flush(timeout: float = _CLOSE_TIMEOUT) -> None:
    """Waits until all runs that were reported by now are sent, for `timeout` seconds at most."""
    until = time.monotonic() + timeout
    for reports in list(_reports.values()):
        reports.flush(max(0.0, until - time.monotonic()))


def trace_of(run: Trajectory) -> RunTrace:
    """The part of a run that is sent: without the requests of completions that the server's ledger has.

    Args:
        run: A run that has ended.
    """
    calls = [call if call.id is None else call.model_copy(update={"messages": []}) for call in run.completions]
    data = run.model_copy(update={"completions": calls}).model_dump(mode="json")
    data = map_texts(data, lambda text: text if text.isascii() else writable(text), keys=True)
    data["scenario"]["id"] = data["scenario"]["id"][:200]
    left_out: list[str] = []
    if len(to_json(data)) > _MOST_BYTES:
        data = map_texts(data, lambda text: beginning(text, _MOST_TEXT))
        left_out.append(f"texts beyond their first {_MOST_TEXT:,} characters")
        if len(to_json(data)) > _MOST_BYTES:
            data |= {"output": None, "metadata": {}}
            data["tool_calls"] = [
                {**tool, "arguments": {}, "result": None, "structured": None, "content": []}
                for tool in data["tool_calls"]
            ]
            left_out.append("the final state, metadata, arguments and results of tools")
    return RunTrace.model_validate({**data, "left_out": left_out})


_servers_of: OrderedDict[str, tuple[Server, ...]] = OrderedDict()
"""By run: the servers that it was reported to."""
_unsent: Counter[str] = Counter()
"""By reason: runs that were not sent."""
_lock = threading.Lock()


@contextmanager
def _open_worker() -> Iterator[Callable[[list[_Report]], int]]:
    with httpx.Client(timeout=_TIMEOUT, transport=ProxyTransport()) as http:
        yield lambda waiting: _send(http, waiting)


def _send(http: httpx.Client, waiting: list[_Report]) -> int:
    """Sends runs to their server, many in a request. Returns how many need not be sent again, from the first."""
    newest = {report.run.id: report for report in waiting}
    batch, begin = _Batch(), 0
    for at, report in enumerate(waiting):
        if newest[report.run.id] is not report:
            continue
        part, fault = _encode_run(report.run)
        if not batch.takes(report, part):
            if not _send_batch(http, batch):
                return begin
            batch, begin = _Batch(), at
        batch.add(report, part, fault)
    return len(waiting) if _send_batch(http, batch) else begin


@dataclass(slots=True)
class _Batch:
    """Runs that are sent in one request."""

    runs: list[_Report] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    """The same as JSON."""
    size: int = 0
    faulty: list[tuple[_Report, str]] = field(default_factory=list)
    """Runs that cannot be written as JSON, and why."""

    def takes(self, report: _Report, part: str) -> bool:
        """Whether a run may be sent with these."""
        fits = self.size + len(part) <= _MOST_BYTES and len(self.runs) < _MOST_IN_BATCH
        return not self.runs or (fits and self.runs[0].server == report.server)

    def add(self, report: _Report, part: str, fault: str | None) -> None:
        if fault is not None:
            self.faulty.append((report, fault))
            return
        self.runs.append(report)
        self.parts.append(part)
        self.size += len(part)


def _encode_run(run: Trajectory) -> tuple[str, str | None]:
    """A run as JSON, with the id of its rollout; and why it cannot be written, None if it can."""
    try:
        return f"{to_json(run.rollout_id)}:{to_json(trace_of(redact(run)))}", None
    except Exception as error:  # what a graph puts into a run is the user's
        return "", f"{type(error).__name__}: {beginning(str(error), 200)}"


def _send_batch(http: httpx.Client, batch: _Batch) -> bool:
    """Sends runs. Returns False where they have to be sent again. Those that the server will never have are logged."""
    if batch.runs and not _post(http, batch):
        return False
    for report, fault in batch.faulty:
        _not_sent([report], "cannot be written as JSON", fault)
    return True


def _post(http: httpx.Client, batch: _Batch) -> bool:
    runs, (url, key) = batch.runs, batch.runs[0].server
    try:
        headers = {"Authorization": f"Bearer {token_of(key)}", "Content-Type": "application/json"}
        body = f'{{"traces":{{{",".join(batch.parts)}}}}}'
        answer = http.post(f"{url}/api/rollouts/traces", content=body.encode(), headers=headers)
        if answer.status_code in BUSY:
            raise httpx.ReadError(f"HTTP {answer.status_code}")
        if answer.is_success:
            _note(runs, url, TracesTaken.model_validate_json(answer.content))
        else:
            _not_sent(runs, "refused", f"{url}: HTTP {answer.status_code}, {beginning(answer.text, 200)}")
    except httpx.TransportError as error:
        if time.monotonic() < runs[-1].since + _GIVE_UP:
            return False
        _not_sent(runs, "no trainer server answers", f"{url}: {type(error).__name__} {error}".rstrip())
    except Exception as error:  # a key's function is the user's
        _not_sent(runs, "cannot be sent", f"{type(error).__name__}: {beginning(str(error), 200)}")
    return True


def _note(runs: list[_Report], url: str, receipt: TracesTaken) -> None:
    """Logs which of the runs the server has not kept."""
    for rollout in receipt.deleted:
        log.info("%s was deleted at %s, and is not told of again", rollout, url)
    for report in runs:
        if why := receipt.refused.get(report.run.rollout_id or ""):
            _not_sent([report], "refused", f"{url}: {beginning(why, 200)}")


def _not_sent(runs: list[_Report], reason: str, why: str) -> None:
    with _lock:
        _unsent[reason] += len(runs)
    warn_once(
        "the trainer server's dashboard shows only the ledger's part of a run: what the graph did could not be sent "
        f"({reason}: {why})",
        f"Nothing of the run is lost here. {OFF}=0 in the environment turns these reports off",
        example=runs[0].run.rollout_id or runs[0].run.id,
    )


def unsent() -> int:
    """How many runs this process could not send."""
    with _lock:
        return _unsent.total()


def _close() -> None:
    """Before the process ends: sends what waits, and logs how many runs were not sent."""
    until = time.monotonic() + _CLOSE_TIMEOUT
    rest = sum(len(reports.close(max(0.0, until - time.monotonic()))) for reports in list(_reports.values()))
    with _lock:
        _unsent["not sent before this process ended"] += rest
        reasons = [f"{count} {reason}" for reason, count in _unsent.items() if count]
        number = _unsent.total()
    if number:
        log.warning(
            "the trainer server's dashboard does not show what %s did (%s)", quantity(number, "run"), ", ".join(reasons)
        )


_reports: dict[str, Background[_Report]] = {}
"""By address of a server: what waits to be sent. One that does not answer must not keep others waiting."""
at_exit(_close)
