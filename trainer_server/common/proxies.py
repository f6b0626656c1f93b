"""The proxy of the environment through which requests to an address go, and the addresses that need none.

`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` count in upper and in lower case, as for curl. Without them the
proxy settings of macOS or Windows count. An address on the loopback interface is asked directly, whatever they say: a
proxy would look for it on a machine of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from trainer_server.common.home import is_local

LOOPBACK = ("localhost", "127.0.0.1", "::1", "127.0.0.0/8")
"""Entries of NO_PROXY for the loopback interface. Not every client reads the last one."""
_SCHEMES = ("http", "https", "all")
_SYSTEM = "the settings of the system"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that the environment names.

    Args:
        url: Its address, with user and password where it has them.
        source: The variable that names it.
    """

    url: str = field(repr=False)
    source: str

    @property
    def host(self) -> str:
        """Its host, and its port where it has one: the address without user and password."""
        return self.url.partition("://")[2].rpartition("@")[2].rstrip("/")

    def __str__(self) -> str:
        return f"{self.url.partition('://')[0]}://{self.host} ({self.source})"


def proxies() -> list[Proxy]:
    """The proxies of the environment."""
    settings = getproxies()
    return [proxy for scheme in _SCHEMES if (proxy := _proxy(settings, scheme)) is not None]


def proxy_of(url: str) -> Proxy | None:
    """The proxy for requests to an address; None: they go there directly.

    Args:
        url: An http or https address.

    Raises:
        ConfigError: It is no address.
    """
    if is_local(url):
        return None
    parts, settings = urlsplit(url), getproxies()
    if (proxy := _proxy(settings, parts.scheme) or _proxy(settings, "all")) is None:
        return None
    host, port = parts.hostname or "", parts.port
    exempt = any(_has(entry.strip().lower(), host, port) for entry in settings.get("no", "").split(","))
    return None if exempt or (proxy.source == _SYSTEM and proxy_bypass(host)) else proxy


def remedy(url: str) -> str:
    """What to do where the proxy of an address is in the way."""
    host = urlsplit(url).hostname
    name = next((name for name in ("no_proxy", "NO_PROXY") if os.environ.get(name)), None)
    return f"if {host} needs no proxy, set {f'{name}=${name},{host}' if name else f'NO_PROXY={host}'}"


def loopback_exemption(environment: Mapping[str, str]) -> dict[str, str]:
    """The values of NO_PROXY with which programs ask loopback directly.

    Args:
        environment: That of the programs.

    Returns:
        Variables to set in it; empty where it names no proxy, or nothing is missing.
    """
    if not any(environment.get(name) for scheme in _SCHEMES for name in _names(scheme)):
        return {}
    either = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    variables = {}
    for name in _names("no"):
        entries = [entry.strip() for entry in (environment.get(name) or either).split(",") if entry.strip()]
        missing = [entry for entry in LOOPBACK if entry not in entries]
        if "*" not in entries and (value := ",".join([*entries, *missing])) != environment.get(name):
            variables[name] = value
    return variables


def exempt_loopback() -> None:
    """Has all clients that this process makes from now on, and its child processes, ask loopback directly.

    It changes NO_PROXY of the process, so it is for processes of this project. In a program of the user, clients of
    this project decide by `proxy_of`.
    """
    os.environ.update(loopback_exemption(os.environ))


def _names(scheme: str) -> tuple[str, str]:
    """The variables of a scheme; the first one counts more."""
    return f"{scheme}_proxy", f"{scheme}_proxy".upper()


def _proxy(settings: Mapping[str, str], scheme: str) -> Proxy | None:
    if not (url := settings.get(scheme)):
        return None
    source = next((name for name in _names(scheme) if os.environ.get(name)), _SYSTEM)
    return Proxy(url if "://" in url else f"http://{url}", source)


def _has(entry: str, host: str, port: int | None) -> bool:
    """Whether an entry of NO_PROXY is about a host: `*`, a network, or a domain or an address, also with a port."""
    with suppress(ValueError):
        return ip_address(host) in ip_network(entry.strip("[]"), strict=False)
    with suppress(ValueError):
        parts = urlsplit(f"//{entry.rpartition('://')[2]}")
        name = (parts.hostname or "").lstrip("*.")
        same = host == name or host.endswith(f".{name}")
        return entry == "*" or (bool(name) and same and parts.port in (None, port))
    return False
