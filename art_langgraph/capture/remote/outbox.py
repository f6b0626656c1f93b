"""Sends the records of runs that belong to a rollout of another process to the trainer server, in the background."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx

from art_langgraph.background.background import Background
from art_langgraph.background.release import token_of
from art_langgraph.capture.handover import RemoteRecord
from art_langgraph.capture.scope import Scope
from art_langgraph.client.outages import BUSY
from art_langgraph.client.proxies import ProxyTransport
from art_langgraph.client.servers import known_servers
from art_langgraph.notices import warn_once
from art_langgraph.trajectory import Trajectory
from trainer_server.common.jsonl import to_json
from trainer_server.wire import ARTError
from trainer_server.wire.rollouts import rollout_api_path
from trainer_server.wire.text import beginning

log = logging.getLogger("art_langgraph")

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_GIVE_UP = 60.0
"""Seconds for which a record is sent again while no server answers, or it has no time. The rollout waits no longer than
that."""


@dataclass(frozen=True, slots=True)
class _RunEvent:
    """The beginning of a run (`trajectory` is None), or its end."""

    scope: Scope
    run: str
    trajectory: Trajectory | None = None
    since: float = field(default_factory=time.monotonic)

    @property
    def overdue(self) -> bool:
        """Whether it is not sent again."""
        return time.monotonic() >= self.since + _GIVE_UP


class Outbox:
    """Sends the beginnings and the records of runs that belong to a rollout of another process.

    Args:
        before_send: Called in the outbox's thread before a record is sent: writes ended runs into the trajectory store,
            so that whoever has the record can look there.
    """

    def __init__(self, before_send: Callable[[], None]) -> None:
        self._before_send = before_send
        self._events: Background[_RunEvent] = Background("art-outbox", self._open_worker, pause=0.0)

    def note_start(self, scope: Scope, run: str) -> None:
        """Sends that a run has begun, if it is one that a rollout waits for. Never blocks, like `note_end`.

        Args:
            scope: The rollout that the run takes up.
            run: Id of its trajectory.
        """
        if scope.call is not None:
            self._events.put(_RunEvent(scope, run))

    def note_end(self, scope: Scope, trajectory: Trajectory) -> None:
        """Sends the record of a run, if it is one that a rollout waits for."""
        if scope.call is not None:
            self._events.put(_RunEvent(scope, trajectory.id, trajectory))

    def flush(self, timeout: float) -> None:
        """Waits until all records are sent, or have been given up, which the log says.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            ARTError: They are not sent after `timeout` seconds.
        """
        if not self._events.flush(timeout):
            raise ARTError(
                f"{self._events.waiting()} records of remote runs have not gone home after {timeout:g} s: no trainer "
                f"server takes them. They are sent again, each for {_GIVE_UP:g} s"
            )

    def close(self, timeout: float) -> None:
        """Sends what is left and ends the thread."""
        if rest := self._events.close(timeout):
            log.error("%d records of remote runs did not go home before the process ended", len(rest))

    @contextmanager
    def _open_worker(self) -> Iterator[Callable[[list[_RunEvent]], int]]:
        with httpx.Client(timeout=_TIMEOUT, transport=ProxyTransport()) as http:

            def work(events: list[_RunEvent]) -> int:
                if any(event.trajectory for event in events):
                    self._before_send()
                return next((count for count, event in enumerate(events) if not _send(http, event)), len(events))

            yield work


def _send(http: httpx.Client, event: _RunEvent) -> bool:
    """Sends an event. Returns False where it has to be sent again. One that a server will never have is logged."""
    scope = event.scope
    # Before the run's first request, the server that clients find by default.
    if not (servers := scope.servers or [(server.url, server.api_key) for server in known_servers()[:1]]):
        warn_once(
            "a run of a remote graph was recorded here, and its record cannot go home: this process knows no trainer "
            "server",
            "Set ART_BASE_URL and ART_API_KEY to those of the trainer server that the rollout's process uses",
            example=scope.rollout_id,
        )
        return True
    call, run = (quote(str(name), safe="") for name in (scope.call, event.run))
    path, problem = f"{rollout_api_path(str(scope.rollout_id))}/records/{call}/{run}", ""
    for url, key in servers:
        try:
            answer = http.put(
                f"{url}{path}",
                content=_body(event),
                headers={"Authorization": f"Bearer {token_of(key)}"},
            )
            if answer.status_code in BUSY and not event.overdue:
                return False
        except httpx.TransportError as error:
            if not event.overdue:
                return False
            problem = f"no trainer server answers at {url} ({error!r})"
        except Exception as error:  # a key's function, and what a graph puts into a tool call, are the user's
            problem = f"{type(error).__name__}: {error}"
        else:
            if not answer.is_success:
                text = beginning(answer.text, 300)
                problem = f"the trainer server at {url} refused it: HTTP {answer.status_code}, {text}"
    if problem and event.trajectory:
        log.error("the record of a remote run of rollout %s did not go home: %s", scope.rollout_id, problem)
    return True


def _body(event: _RunEvent) -> bytes:
    if event.trajectory is None:
        return b""
    return to_json(RemoteRecord.of(event.trajectory, event.scope.mark_count)).encode()
