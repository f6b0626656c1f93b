"""Sends the records of runs that belong to a rollout of another process to the trainer server, in the background."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx

from art_langgraph.background.background import Background
from art_langgraph.background.release import Server, token_of
from art_langgraph.capture.remote.record import RemoteRecord
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
class _News:
    """A run has begun (`trajectory` is None), or ended."""

    scope: Scope
    run: str
    trajectory: Trajectory | None = None
    since: float = field(default_factory=time.monotonic)

    @property
    def overdue(self) -> bool:
        """Whether it is not sent again."""
        return time.monotonic() >= self.since + _GIVE_UP


class Outbox:
    """Tells the trainer server of runs that belong to a rollout of another process.

    Args:
        before_send: Called in the outbox's thread before a record is sent: writes ended runs into the trajectory store,
            so that whoever has the record can look there.
    """

    def __init__(self, before_send: Callable[[], None]) -> None:
        self._stored = before_send
        self._news: Background[_News] = Background("art-outbox", self._open_worker, pause=0.0)

    def note_start(self, scope: Scope, run: str) -> None:
        """A run has begun, if it is one that a rollout waits for. Never blocks, as `note_end`.

        Args:
            scope: The rollout that the run takes up.
            run: Id of its trajectory.
        """
        if scope.call is not None:
            self._news.put(_News(scope, run))

    def note_end(self, scope: Scope, trajectory: Trajectory) -> None:
        """A run has ended, if it is one that a rollout waits for."""
        if scope.call is not None:
            self._news.put(_News(scope, trajectory.id, trajectory))

    def flush(self, timeout: float) -> None:
        """Returns when all news is sent, or has been given up, which the log says.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            ARTError: It is not sent after `timeout` seconds.
        """
        if not self._news.flush(timeout):
            raise ARTError(
                f"{self._news.waiting()} records of remote runs have not gone home after {timeout:g} s: no trainer "
                f"server takes them. They are sent again, each for {_GIVE_UP:g} s"
            )

    def close(self, timeout: float) -> None:
        """Sends what is left and ends the thread."""
        if left := self._news.close(timeout):
            log.error("%d records of remote runs did not go home before the process ended", len(left))

    @contextmanager
    def _open_worker(self) -> Iterator[Callable[[list[_News]], int]]:
        with httpx.Client(timeout=_TIMEOUT, transport=ProxyTransport()) as http:

            def work(news: list[_News]) -> int:
                if any(item.trajectory for item in news):
                    self._stored()
                return next((done for done, item in enumerate(news) if not _sent(http, item)), len(news))

            yield work


def _sent(http: httpx.Client, news: _News) -> bool:
    """Whether a server has the news, or never will: the log says why."""
    scope = news.scope
    if not (servers := _servers(scope)):
        warn_once(
            "a run of a remote graph was recorded here, and its record cannot go home: this process knows no trainer "
            "server",
            "Set ART_BASE_URL and ART_API_KEY to those of the trainer server that the rollout's process uses",
            example=scope.rollout_id,
        )
        return True
    call, run = (quote(str(name), safe="") for name in (scope.call, news.run))
    path, wrong = f"{rollout_api_path(str(scope.rollout_id))}/records/{call}/{run}", ""
    for url, key in servers:
        try:
            answer = http.put(
                f"{url}{path}",
                content=_body(news),
                headers={"Authorization": f"Bearer {token_of(key)}"},
            )
            if answer.status_code in BUSY and not news.overdue:
                return False
        except httpx.TransportError as error:
            if not news.overdue:
                return False
            wrong = f"no trainer server answers at {url} ({error!r})"
        except Exception as error:  # a key's function, and what a graph puts into a tool call, are the user's
            wrong = f"{type(error).__name__}: {error}"
        else:
            if not answer.is_success:
                text = beginning(answer.text, 300)
                wrong = f"the trainer server at {url} refused it: HTTP {answer.status_code}, {text}"
    if wrong and news.trajectory:
        log.error("the record of a remote run of rollout %s did not go home: %s", scope.rollout_id, wrong)
    return True


def _body(news: _News) -> bytes:
    if news.trajectory is None:
        return b""
    return to_json(RemoteRecord.of(news.trajectory, news.scope.mark_count)).encode()


def _servers(scope: Scope) -> Collection[Server]:
    """The servers that the run has asked; before it asked any, the one that clients find by default."""
    return scope.servers or [(server.url, server.api_key) for server in known_servers()[:1]]
