"""Logins: a browser that sent a token has a cookie for some hours.

The cookie counts for the pages and for the control API, never for the gateway, and it has the rights of the token. It
is a message that only this server can make: when it ends, the token's name, and an HMAC of both and of the token's
digest under the server's own key. So it survives a restart. Another key of the server ends all logins, and a revoked
token its own.

A browser sends the cookie with requests of pages from any server. Requests that change something therefore need a
proof that a page of this server made them: `Sec-Fetch-Site: same-origin`, or an `Origin` with the host of the request.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from trainer_server.server.access.tokens import Keyring, Token

SECONDS = 12 * 3600.0
"""How long a login counts."""
_SAFE = {"GET", "HEAD", "OPTIONS"}
_GUESSES = 10
"""Wrong tokens in a minute from one address, after which others are answered 429 until the minute has passed."""
_MOST_ADDRESSES = 1000
"""Addresses whose wrong tokens are counted. Beyond that, the one that began first is forgotten."""


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
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """By address: the end of its minute, and its wrong tokens."""

    def login(self, secret: str, address: str) -> tuple[Token, str] | None:
        """The token of a login form, and the value of a cookie for it; None: there is no such token, or it has expired.

        A right token counts, however many wrong ones came before. Otherwise anybody could keep others out.

        Args:
            secret: The token.
            address: Of the client.

        Raises:
            ConfigError: The named tokens cannot be read.
        """
        token = self._keys.find(secret.strip())
        if token is None or token.expired(self._clock()):
            self._count(_network(address))
            return None
        end = f"{self._clock() + SECONDS:.0f}"
        return token, f"{end}.{self._signature(end, token)}.{token.name}"

    def too_many(self, address: str) -> bool:
        """Whether too many wrong tokens came from an address in its minute."""
        end, count = self._wrong.get(_network(address), (0.0, 0))
        return count > _GUESSES and self._clock() < end

    def _count(self, network: str) -> None:
        end, count = self._wrong.get(network, (0.0, 0))
        if self._clock() >= end:
            self._wrong.pop(network, None)
            end, count = self._clock() + 60, 0
        self._wrong[network] = end, count + 1
        if len(self._wrong) > _MOST_ADDRESSES:
            self._wrong.popitem(last=False)

    def token(self, method: str, path: str, headers: Headers) -> Token | None:
        """The token of the login in a request's cookie; None: there is none, or the request may not use it.

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
        token = self._keys.find_by_name(name) if name else None
        if token is None or not hmac.compare_digest(signature.encode(), self._signature(end, token).encode()):
            return None
        return token if end.isdecimal() and float(end) > self._clock() else None

    def _signature(self, end: str, token: Token) -> str:
        return hmac.new(self._key, f"{end}.{token.name}.{token.digest}".encode(), hashlib.sha256).hexdigest()


def of_other_page(headers: Headers) -> bool:
    """Whether a browser sent a request for a page of another server. What is no browser sends none of these headers."""
    if (site := headers.get("Sec-Fetch-Site")) is not None:
        return site not in ("same-origin", "none")  # none: the user repeated it
    return "Origin" in headers and not _own_page(headers)


def _network(address: str) -> str:
    """What counts as one address: of IPv6 a network of 64 bits, all of whose addresses one client may have."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if ipv4 := getattr(ip, "ipv4_mapped", None):  # a socket that takes both has addresses of IPv6 only
        return str(ipv4)
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ip.version == 6 else address


def _own_page(headers: Headers) -> bool:
    """Whether a page of this server made a request."""
    if (site := headers.get("Sec-Fetch-Site")) is not None:
        return site == "same-origin"
    origin = headers.get("Origin")
    try:
        return origin is not None and urlsplit(origin).netloc.lower() == headers.get("Host", "").lower()
    except ValueError:  # no address, so none of this server
        return False


def _cookie(text: str, name: str) -> str:
    """The value of a cookie; empty: it was not sent. Cookies of other programs on this host may have any form."""
    return cookie_parser(text).get(name, "")
