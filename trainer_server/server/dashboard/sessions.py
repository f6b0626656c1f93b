"""Logins: whoever gave a token once has a cookie for some hours.

The cookie counts for the pages and for the control API, never for the gateway, and it has the rights of the token. It
is a message that only this server can make: when it ends, the token's name, and an HMAC of both and of the token's
digest under the server's own key. So it survives a restart. Another key of the server ends all logins, and a revoked
token its own.

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

from trainer_server.server.access.tokens import Keyring, Token

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
        keys: The tokens.
        clock: Gives the time, Unix seconds.
    """

    def __init__(self, keys: Keyring, clock: Callable[[], float] = time.time) -> None:
        self._keys, self._clock = keys, clock
        self._key = hashlib.sha256(b"art-langgraph dashboard\0" + keys.own_digest.encode()).digest()
        self.cookie = f"art_session_{hashlib.sha256(self._key).hexdigest()[:8]}"
        """Name of the cookie. Servers on other ports of a host get the same cookies, so each has a name of its own."""
        self._wrong: deque[float] = deque()

    def login(self, secret: str) -> tuple[Token, str] | None:
        """The token that somebody gave, and the value of a cookie for it; None: it does not count.

        Raises:
            ConfigError: The named tokens cannot be read.
        """
        token = self._keys.find(secret.strip())
        if token is None or token.expired(self._clock()):
            self._wrong.append(self._clock())
            return None
        end = f"{self._clock() + SECONDS:.0f}"
        return token, f"{end}.{self._signature(end, token)}.{token.name}"

    def too_many(self) -> bool:
        """Whether too many wrong tokens came in the last minute."""
        while self._wrong and self._wrong[0] < self._clock() - 60:
            self._wrong.popleft()
        return len(self._wrong) >= _GUESSES

    def token(self, method: str, path: str, headers: Headers) -> Token | None:
        """The token of the login that a request comes from; None: it comes from none, or may not be asked by a cookie.

        Args:
            method: Of the request.
            path: Of the request.
            headers: Of the request.

        Raises:
            ConfigError: The named tokens cannot be read.
        """
        if not (path == "/" or path.startswith(("/ui/", "/api/"))):
            return None
        asked_by = headers.get("Sec-Fetch-Site", "none")
        if path.startswith("/api/") and asked_by not in ("same-origin", "none"):
            return None  # a page of another port of this host, for example: it gets the cookie
        if method not in _SAFE and not _own_page(headers):
            return None
        return self._token_of(_cookie(headers.get("Cookie", ""), self.cookie))

    def _token_of(self, value: str) -> Token | None:
        end, _, rest = value.partition(".")
        signature, _, name = rest.partition(".")
        token = self._keys.named(name) if name else None
        if token is None or not hmac.compare_digest(signature.encode(), self._signature(end, token).encode()):
            return None
        return token if end.isdecimal() and float(end) > self._clock() else None

    def _signature(self, end: str, token: Token) -> str:
        return hmac.new(self._key, f"{end}.{token.name}.{token.digest}".encode(), hashlib.sha256).hexdigest()


def _own_page(headers: Headers) -> bool:
    """Whether a page of this server made a request."""
    if (site := headers.get("Sec-Fetch-Site")) is not None:
        return site == "same-origin"
    origin = headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc.lower() == headers.get("Host", "").lower()


def _cookie(text: str, name: str) -> str:
    try:
        cookie = SimpleCookie(text).get(name)
    except CookieError:
        return ""
    return cookie.value if cookie else ""
