"""Logins: whoever gave the token once has a cookie for some hours.

The cookie counts for the pages and for the control API, never for the gateway. It is a message that only this server
can make: when it ends, and an HMAC of that under the token. So it survives a restart, and another token ends it.

A cookie is sent by the browser, whoever made the page that asks. Requests that change something therefore need a proof
that a page of this server made them: `Sec-Fetch-Site: same-origin`, or an `Origin` with the host that was asked.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import deque
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers

LOGIN = "/ui/login"
"""Path of the login page."""
SECONDS = 12 * 3600.0
"""How long a login counts."""
_SAFE = {"GET", "HEAD", "OPTIONS"}
_GUESSES = 10
"""Wrong tokens in a minute, of all browsers together, after which no login is tried until the minute has passed."""


class Sessions:
    """Makes and reads the cookies of logins.

    Args:
        token: The bearer token.
        clock: Gives the time, Unix seconds.
    """

    def __init__(self, token: str, clock: Callable[[], float] = time.time) -> None:
        self._token, self._clock = token.encode(), clock
        self._key = hashlib.sha256(b"art-langgraph dashboard\0" + self._token).digest()
        self.cookie = f"art_session_{self._key.hex()[:8]}"
        """Name of the cookie. Servers on other ports of a host get the same cookies, so each has a name of its own."""
        self._wrong: deque[float] = deque()

    def login(self, token: str) -> str | None:
        """The value of a cookie for whoever has the token; None: the token is wrong."""
        if not hmac.compare_digest(token.strip().encode(), self._token):
            self._wrong.append(self._clock())
            return None
        end = f"{self._clock() + SECONDS:.0f}"
        return f"{end}.{self._signature(end)}"

    def too_many(self) -> bool:
        """Whether too many wrong tokens came in the last minute."""
        while self._wrong and self._wrong[0] < self._clock() - 60:
            self._wrong.popleft()
        return len(self._wrong) >= _GUESSES

    def holds(self, method: str, path: str, headers: Headers) -> bool:
        """Whether a request comes from a page that was logged in, and may ask for what it asks.

        Args:
            method: Of the request.
            path: Of the request.
            headers: Of the request.
        """
        if not (path == "/" or path.startswith(("/ui/", "/api/"))):
            return False
        asked_by = headers.get("Sec-Fetch-Site", "none")
        if path.startswith("/api/") and asked_by not in ("same-origin", "none"):
            return False  # a page of another port of this host, for example: it gets the cookie
        if method not in _SAFE and not _own_page(headers):
            return False
        return self._valid(_cookie(headers.get("Cookie", ""), self.cookie))

    def _valid(self, value: str) -> bool:
        end, _, signature = value.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(end).encode()):
            return False
        return end.isdecimal() and float(end) > self._clock()

    def _signature(self, end: str) -> str:
        return hmac.new(self._key, end.encode(), hashlib.sha256).hexdigest()


def _own_page(headers: Headers) -> bool:
    """Whether a page of this server made a request."""
    if (site := headers.get("Sec-Fetch-Site")) is not None:
        return site == "same-origin"
    origin = headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc.lower() == headers.get("Host", "").lower()


def _cookie(text: str, name: str) -> str:
    try:
        found = SimpleCookie(text).get(name)
    except CookieError:
        return ""
    return found.value if found else ""
