"""Tells the trainer server what a run did that has ended, for its dashboard: in the background, and never in the way.

The server has the tokens of a run, and knows no graph. So the client sends it the nodes, the tool calls, the rewards
and what judges said. A run that cannot be sent is not lost: it is in the trajectory store, and only the dashboard shows
less of it. How many these are is said once, and in the end.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from art_langgraph.capture.background import Background, at_exit
from art_langgraph.capture.release import Server, token_of
from art_langgraph.client.transport import certificates
from art_langgraph.notices import warn_once
from art_langgraph.redaction import redacted
from art_langgraph.trajectory import Trajectory
from trainer_server.wire import Connection, RunTrace
from trainer_server.wire.jsonl import to_json
from trainer_server.wire.text import beginning, writable

log = logging.getLogger("art_langgraph")

_TIMEOUT = httpx.Timeout(10.0, connect=2.0)
_GIVE_UP = 30.0
"""Seconds for which a run is sent again while no server answers."""
_MOST = 1000
"""Runs that may wait to be sent to a server. Later ones are left out."""
_REMEMBERED = 10_000
"""Runs of which is known where they were sent."""
_LAST = 5.0
"""Seconds that a process which ends waits for what is not sent yet."""
_MOST_BYTES = 4 * 2**20
"""Size of a run, as JSON, above which its texts are cut."""
_MOST_TEXT = 20_000
"""Characters of a text in a run that is too large."""
OFF = "ART_REPORT_RUNS"
"""The environment variable that turns reports off, by `0`."""


@dataclass(frozen=True, slots=True)
class _Report:
    run: Trajectory
    server: Server
    since: float = field(default_factory=time.monotonic)


def report(run: Trajectory, asked: Collection[Server], otherwise: Connection | None = None) -> None:
    """Sends what a run did to the servers that it asked. Never blocks, and never raises.

    Args:
        run: A run that has ended.
        asked: Address and key of each trainer server that the run has asked.
        otherwise: The server that is told where the run asked none; None: none is told.
    """
    servers: tuple[Server, ...] = tuple(asked)
    if not servers and otherwise is not None:
        servers = ((otherwise.url, otherwise.api_key),)
    if not servers or run.rollout_id is None or run.imported or os.environ.get(OFF) == "0":
        return
    with _lock:
        _told[run.id] = servers
        while len(_told) > _REMEMBERED:
            _told.popitem(last=False)
        for server in servers:
            if server[0] not in _reports:
                _reports[server[0]] = Background("art-reports", _opened, pause=0.05)
    as_it_is = run.model_copy()
    for server in servers:
        reports = _reports[server[0]]
        if reports.waiting() >= _MOST:
            _not_sent(run, f"{_MOST} runs wait to be sent to {server[0]}")
        else:
            reports.put(_Report(as_it_is, server))


def report_again(run: Trajectory) -> None:
    """The same for a run that was reported and got another reward: it takes the place of what was sent before."""
    with _lock:
        servers = _told.get(run.id, ())
    report(run, servers)


def flush(timeout: float = _LAST) -> None:
    """Waits until all runs that were reported by now are sent, for `timeout` seconds at most."""
    until = time.monotonic() + timeout
    for reports in list(_reports.values()):
        reports.flush(max(0.0, until - time.monotonic()))


def trace_of(run: Trajectory) -> RunTrace:
    """What is sent of a run: without the requests of completions that the server's ledger has.

    Args:
        run: A run that has ended.
    """
    calls = [call if call.id is None else call.model_copy(update={"messages": []}) for call in run.completions]
    sent = run.model_copy(update={"completions": calls}).model_dump(mode="json")
    sent = _cleaned(sent)
    sent["scenario"]["id"] = sent["scenario"]["id"][:200]
    left_out: list[str] = []
    if len(to_json(sent)) > _MOST_BYTES:
        sent = _shortened(sent)
        left_out.append(f"texts beyond their first {_MOST_TEXT:,} characters")
        if len(to_json(sent)) > _MOST_BYTES:
            sent |= {"output": None, "metadata": {}}
            sent["tool_calls"] = [
                {**tool, "arguments": {}, "result": None, "structured": None, "content": []}
                for tool in sent["tool_calls"]
            ]
            left_out.append("the final state, metadata, arguments and results of tools")
    return RunTrace.model_validate({**sent, "left_out": left_out})


def _cleaned(value: Any) -> Any:
    """A JSON value with half surrogate pairs escaped, which no text of a trace may have."""
    if isinstance(value, str):
        return value if value.isascii() else writable(value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(inner) for key, inner in value.items()}
    return [_cleaned(inner) for inner in value] if isinstance(value, list) else value


def _shortened(value: Any) -> Any:
    """A JSON value with long texts cut."""
    if isinstance(value, str):
        return beginning(value, _MOST_TEXT)
    if isinstance(value, dict):
        return {key: _shortened(inner) for key, inner in value.items()}
    return [_shortened(inner) for inner in value] if isinstance(value, list) else value


_told: OrderedDict[str, tuple[Server, ...]] = OrderedDict()
"""By run: the servers that were told of it."""
_count = 0
_lock = threading.Lock()


@contextmanager
def _opened() -> Iterator[Callable[[list[_Report]], int]]:
    with httpx.Client(timeout=_TIMEOUT, verify=certificates()) as http:

        def send(waiting: list[_Report]) -> int:
            newest = {one.run.id: one for one in waiting}
            return next(
                (done for done, one in enumerate(waiting) if newest[one.run.id] is one and not _sent(http, one)),
                len(waiting),
            )

        yield send


def _sent(http: httpx.Client, one: _Report) -> bool:
    """Whether the server has a run, or never will: then the log says why."""
    try:
        body = to_json(trace_of(redacted(one.run)))
    except Exception as error:  # what a graph puts into a run is the user's
        _not_sent(one.run, f"it cannot be written as JSON: {type(error).__name__}: {beginning(str(error), 200)}")
        return True
    url, key = one.server
    try:
        headers = {"Authorization": f"Bearer {token_of(key)}", "Content-Type": "application/json"}
        answer = http.put(f"{url}/api/rollouts/{one.run.rollout_id}/trace", content=body, headers=headers)
    except httpx.TransportError as error:
        if time.monotonic() < one.since + _GIVE_UP:
            return False
        _not_sent(one.run, f"no trainer server answers at {url} ({type(error).__name__})")
    except Exception as error:  # a key's function is the user's
        _not_sent(one.run, f"{type(error).__name__}: {beginning(str(error), 200)}")
    else:
        if answer.status_code == 410:
            log.info("%s was deleted at %s, and is not told of again", one.run.rollout_id, url)
        elif not answer.is_success:
            _not_sent(one.run, f"{url} refused it: HTTP {answer.status_code}, {beginning(answer.text, 200)}")
    return True


def _not_sent(run: Trajectory, why: str) -> None:
    global _count
    with _lock:
        _count += 1
    warn_once(
        "the trainer server's dashboard shows only the ledger's part of a run: what the graph did could not be sent "
        f"({why})",
        f"Nothing of the run is lost here. {OFF}=0 in the environment turns these reports off",
        example=run.rollout_id or run.id,
    )


def unsent() -> int:
    """How many runs this process could not send."""
    with _lock:
        return _count


def _last() -> None:
    until = time.monotonic() + _LAST
    left = sum(len(reports.close(max(0.0, until - time.monotonic()))) for reports in list(_reports.values()))
    if number := unsent() + left:
        log.warning("the trainer server's dashboard does not show what %d runs did: they could not be sent", number)


_reports: dict[str, Background[_Report]] = {}
"""By address of a server: what waits to be sent. One that does not answer must not keep others waiting."""
at_exit(_last)
