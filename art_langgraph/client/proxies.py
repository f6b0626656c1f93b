"""Transports of httpx that ask an address by the proxy of the environment, or directly where it needs none.

httpx reads the proxies when a client is made, for all addresses: requests to loopback would go by them too, and a proxy
that cannot be used (`socks5://` without socksio) would fail the client of a server that needs no proxy.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import httpx

from art_langgraph.client.connections import unlimited_transport
from trainer_server.common.home import is_local
from trainer_server.common.proxies import Proxy, proxies, proxy_of, remedy
from trainer_server.wire import ConfigError
from trainer_server.wire.headers import REQUEST

log = logging.getLogger("art_langgraph")

HTTP_LIBRARIES = ("httpx", "httpx2")
"""What the clients of model providers are made with. httpx2 goes on from httpx, with the same names and with
classes of its own."""
_REFUSAL_STATUSES = ("403", "407", "511")
"""Statuses by which a proxy refuses a request to an http address. To an https address httpx raises ProxyError."""
_NOT_REACHED = ("502", "503", "504")
"""Statuses by which a proxy says that it does not reach the server, which may be restarting."""
_OF_SERVERS = (REQUEST, "Retry-After")
"""Headers of answers that a server gave itself: the first one of a trainer server, the second one of any."""

_lock = threading.Lock()
_clients_exempt = False


def certificates() -> ssl.SSLContext:
    """What httpx trusts by default. Reading it takes 50 ms of the processor, which each client would spend anew."""
    return _certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@functools.lru_cache
def _certificates(_file: str | None, _directory: str | None) -> ssl.SSLContext:
    return httpx.create_ssl_context()


class _Pools:
    """Connections by proxy, opened when they are needed.

    Args:
        kind: Class of the transports that hold them, or a function that makes one.
        library: That of the class, one of HTTP_LIBRARIES.
        options: Those of the class.
    """

    def __init__(self, kind: Any, library: Any, options: dict[str, Any]) -> None:
        self._kind, self._library, self._options = kind, library, options
        self._transports: dict[str | None, Any] = {}
        self._lock = threading.Lock()

    def take(self, proxy: Proxy | None, url: str) -> Any:
        """The transport for an address that has a proxy, or none."""
        by = None if proxy is None else proxy.url
        with self._lock:
            if by not in self._transports:
                try:
                    self._transports[by] = self._kind(verify=certificates(), proxy=by, **self._options)
                except ImportError:
                    raise ConfigError(
                        f"the proxy {proxy} needs a package: pip install '{self._library.__name__}[socks]'; or "
                        f"{remedy(url)}"
                    ) from None
                except (ValueError, self._library.InvalidURL) as error:  # its text may have a part of a password
                    raise ConfigError(
                        f"{proxy} cannot be read as the address of a proxy ({type(error).__name__}): it must look like "
                        "http://proxy.example.com:3128"
                    ) from None
            return self._transports[by]

    def clear(self) -> list[Any]:
        """Forgets all transports, and returns them."""
        with self._lock:
            transports, self._transports = list(self._transports.values()), {}
        return transports

    @contextmanager
    def name_proxy(self, proxy: Proxy | None, url: str) -> Iterator[None]:
        """Has the errors of a request name its proxy."""
        try:
            yield
        except self._library.ProxyError as error:  # its text begins with the status
            assert proxy is not None
            raise self._error(str(error), str(error)[:3], proxy, url) from error
        except self._library.TransportError as error:
            if proxy is None:
                raise
            raise type(error)(f"{str(error) or type(error).__name__}, {_by(proxy, url)}") from error

    def refusal(self, proxy: Proxy | None, url: str, answer: Any) -> Exception | None:
        """The error for an answer of a proxy that did not pass the request on; None for an answer of the server."""
        if proxy is None or not url.startswith("http:") or any(name in answer.headers for name in _OF_SERVERS):
            return None
        if str(answer.status_code) not in (*_REFUSAL_STATUSES, *_NOT_REACHED) or "json" in answer.headers.get(
            "Content-Type", ""
        ):
            return None
        return self._error(f"HTTP {answer.status_code}", str(answer.status_code), proxy, url)

    def _error(self, text: str, status: str, proxy: Proxy, url: str) -> Exception:
        """The error for a request that a proxy did not pass on."""
        text = f"{text}, {_by(proxy, url)}"
        kind: type[Exception] = self._library.ConnectError
        if status not in _NOT_REACHED:
            kind = self._library.ProxyError
            _warn(text)
        return kind(text)


class ProxyTransport(httpx.BaseTransport):
    """Asks each address by the proxy that it needs (`proxy_of`), or directly. Threads may share it.

    Args:
        options: Those of `httpx.HTTPTransport`.
    """

    def __init__(self, **options: Any) -> None:
        self._pools = _Pools(httpx.HTTPTransport, httpx, options)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        proxy = proxy_of(url := str(request.url))
        with self._pools.name_proxy(proxy, url):
            answer: httpx.Response = self._pools.take(proxy, url).handle_request(request)
        if refusal := self._pools.refusal(proxy, url, answer):
            answer.close()
            raise refusal
        return answer

    def close(self) -> None:
        for transport in self._pools.clear():
            transport.close()


class AsyncProxyTransport(httpx.AsyncBaseTransport):
    """The same for asynchronous clients of one event loop.

    Args:
        library: That of the client, one of HTTP_LIBRARIES.
        idle: Connections to a server that may wait for their next request, of any number that there are; None: as
            many, and as many at once, as are usual in httpx.
    """

    def __init__(self, library: str = "httpx", idle: int | None = None) -> None:
        module: Any = import_module(library)
        kind = module.AsyncHTTPTransport if idle is None else functools.partial(unlimited_transport, module, idle)
        self._pools = _Pools(kind, module, {})

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        proxy = proxy_of(url := str(request.url))
        with self._pools.name_proxy(proxy, url):
            answer: httpx.Response = await self._pools.take(proxy, url).handle_async_request(request)
        if refusal := self._pools.refusal(proxy, url, answer):
            await answer.aclose()
            raise refusal
        return answer

    async def aclose(self) -> None:
        for transport in self._pools.clear():
            await transport.aclose()


def get(url: str, **options: Any) -> httpx.Response:
    """`httpx.get` by a ProxyTransport.

    Args:
        url: The address.
        options: Those of `httpx.Client.get`.
    """
    with httpx.Client(transport=ProxyTransport()) as http:
        return http.get(url, **options)


def http_libraries() -> list[Any]:
    """Those of HTTP_LIBRARIES that are installed, as modules."""
    return [import_module(name) for name in HTTP_LIBRARIES if importlib.util.find_spec(name) is not None]


def exempt_clients() -> None:
    """Has the clients of other packages ask loopback directly, also those that are made already. Once per process.

    `openai`, `anthropic`, LangChain and LangGraph's SDK make clients of httpx or httpx2, which have the proxies that
    the environment named then. A proxy or transport that somebody gave to a client himself still counts.
    """
    global _clients_exempt
    with _lock:
        if _clients_exempt:
            return
        for library in http_libraries():
            _exempt(library.Client)
            _exempt(library.AsyncClient)
        _clients_exempt = True


def _exempt(kind: Any) -> None:
    plain = kind._transport_for_url

    @functools.wraps(plain)
    def transport_for_url(self: Any, url: Any) -> Any:
        transport = plain(self, url)
        if transport is not self._transport and _of_environment(transport) and is_local(str(url)):
            return self._transport
        return transport

    kind._transport_for_url = transport_for_url


def _of_environment(transport: Any) -> bool:
    """Whether a transport sends by a proxy of the environment."""
    url = getattr(getattr(transport, "_pool", None), "_proxy_url", None)
    if url is None:
        return False
    host = url.host.decode() + (f":{url.port}" if url.port else "")
    return any(proxy.host.lower() == host for proxy in proxies())


def _by(proxy: Proxy, url: str) -> str:
    return f"by the proxy {proxy}: {remedy(url)}"


@functools.cache
def _warn(text: str) -> None:
    """Says once what the errors of OpenAI's clients do not say."""
    log.warning("a request was refused: %s", text)
