"""How long requests are repeated while the trainer server does not answer: it may be restarting."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass

import httpx

from trainer_server.wire import SERVER_STOPPING, ConfigError, ServerUnreachable

log = logging.getLogger("art_langgraph")

RETRY_FOR = 120.0
"""Seconds for which a request is repeated, where neither an argument nor `ART_RETRY_FOR` says otherwise."""
LOST_ERRORS = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)
"""Errors of a connection that was refused or cut. A server that holds the connection and is slow is not lost."""
STALL_ERRORS = (*LOST_ERRORS, httpx.ReadTimeout, httpx.WriteTimeout)
"""The same, and a server that does not answer in time what takes it no time: its machine may be short of memory. Not
for requests to a model, which may take long."""
BUSY = (429, 502, 503, 504)
"""Statuses after which the same report may be taken, for those that send it in the background."""
_AWAY = (SERVER_STOPPING, "too_many_connections")
"""Codes of a 503 by which a server says that it stops, or that it takes no more connections: the request was not
answered, and may be sent again."""
AWAY_STATUSES = (502, 503)
"""Statuses of answers that may say so. Load balancers give both in place of a server that is gone."""
_OVER = 30.0
"""Seconds without any failure after which the next failure begins another outage."""
_LONGEST_PAUSE = 2.0


def retry_seconds(argument: float | None = None) -> float:
    """Seconds for which a request is repeated while no server answers.

    Args:
        argument: The argument of a client or a model; None: `ART_RETRY_FOR` in the environment, else `RETRY_FOR`.

    Raises:
        ConfigError: The value is no number of 0 or more.
    """
    value: object = os.environ.get("ART_RETRY_FOR") or RETRY_FOR if argument is None else argument
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        name = "ART_RETRY_FOR" if argument is None else "retry_for"
        raise ConfigError(f"{name}={value!r} is no number of seconds: give 0 (never ask again) or more")
    return seconds


class ServerAway(httpx.NetworkError):
    """A server answered only that it does not answer now.

    Args:
        answer: Its answer, which was read.
        code: Why, one of the codes of such answers.
    """

    def __init__(self, answer: httpx.Response, code: str) -> None:
        super().__init__(f"HTTP {answer.status_code}, {code}")
        self.answer = answer


def raise_if_away(answer: httpx.Response) -> None:
    """Raises ServerAway for such an answer, and for one that is no JSON: a load balancer's.

    Args:
        answer: One with a status of AWAY_STATUSES, which was read.
    """
    try:
        code = answer.json()["error"]["code"]
    except (KeyError, TypeError):
        return
    except ValueError:
        raise ServerAway(answer, "not from a trainer server") from None
    if code in _AWAY:
        raise ServerAway(answer, code)


@dataclass(slots=True)
class _Outage:
    began: float
    last_failure: float
    """When a request failed last."""
    reported: bool = False


class Outages:
    """The servers that do not answer at the moment.

    All requests of a process share one. The time limit is that of the outage, so that retries on top of one another
    (those of OpenAI's client, of a node, of a rollout) do not multiply it.
    """

    def __init__(self) -> None:
        self._outages: dict[str, _Outage] = {}
        self._ended: dict[str, float] = {}
        """When the last outage of a server ended."""
        self._lock = threading.Lock()

    def pause(self, url: httpx.URL, error: Exception, *, attempt: int, since: float, patience: float) -> float | None:
        """How long to wait after a request failed because its server is gone.

        Args:
            url: Where the request went.
            error: What it raised.
            attempt: How often this request was sent until now. The first failure may be a connection that was idle
                for too long, so that the outage is reported from the second on.
            since: When this request failed first, by `time.monotonic`. A server that answers others, and cuts this one
                off each time, is not asked for ever.
            patience: Seconds from the beginning of the outage for which requests are repeated.

        Returns:
            Seconds to wait before it is sent again; None: it is not sent again.
        """
        now, server = time.monotonic(), _server(url)
        with self._lock:
            outage = self._outages.get(server)
            if outage is None or now - outage.last_failure > _OVER:
                outage = self._outages[server] = _Outage(began=now, last_failure=now)
            outage.last_failure = now
            age = now - min(outage.began, since)
            if age >= patience:
                return None
            first_report = attempt > 1 and not outage.reported
            outage.reported = outage.reported or first_report
        if first_report:
            log.warning("no trainer server answers at %s (%s): asking again for %g s", server, explain(error), patience)
        return min(max(age / 4, 0.1), _LONGEST_PAUSE, patience - age)

    def note_answer(self, url: httpx.URL) -> None:
        """A server has answered: its outage, if any, is over."""
        if not self._outages:
            return
        with self._lock:
            outage = self._outages.pop(_server(url), None)
        if outage is not None and outage.reported:
            now = self._ended[_server(url)] = time.monotonic()
            seconds = now - outage.began
            log.warning("the trainer server at %s answers again, after %.0f s", _server(url), seconds)

    def gone_since(self, url: httpx.URL, moment: float) -> bool:
        """Whether a server was gone for a while after a moment of `time.monotonic`, or is gone now."""
        with self._lock:
            outage = self._outages.get(_server(url))
            lasts = outage is not None and outage.reported and outage.last_failure >= moment
            return lasts or self._ended.get(_server(url), float("-inf")) >= moment


outages = Outages()
"""Those of this process."""


def speaks_no_tls(error: Exception) -> bool:
    """Whether an error of a connection says that an https address is that of a server that speaks http."""
    return any(words in str(error) for words in ("WRONG_VERSION_NUMBER", "record layer failure"))  # OpenSSL 3.0, 3.2


def explain(error: Exception) -> str:
    """An error of a connection in a few words."""
    if speaks_no_tls(error):
        return "the address says https, and what answers there speaks http"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def unreachable(url: str, error: Exception, remedy: str) -> ServerUnreachable:
    """The exception for a server that a request did not reach.

    Args:
        url: Its address.
        error: What the request raised.
        remedy: What to do where nothing answers at the address: sentences.
    """
    if speaks_no_tls(error):
        remedy = (
            f"Use http{url.removeprefix('https')} (ART_BASE_URL, base_url=…, art-langgraph connect URL), or give the "
            "server a certificate (serve --ssl-certfile)."
        )
    return ServerUnreachable(f"no trainer server answers at {url} ({explain(error)}). {remedy}")


def _server(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"
