"""Whether an address is that of a trainer server that this version can talk to, and whether a token counts there."""

from __future__ import annotations

import re
from importlib.metadata import version

import httpx
from pydantic import ValidationError

from art_langgraph.client.api import read_error
from art_langgraph.client.outages import unreachable
from art_langgraph.client.proxies import get
from trainer_server.common import Connection, TokenInfo
from trainer_server.common.home import is_local, origin, server_address
from trainer_server.wire import ConfigError, ServerUnreachable

_TIMEOUT = 10.0
"""Seconds for an answer."""


def check_address(url: str, *, insecure: bool = False) -> str:
    """The address of a trainer server that answers. No token is sent.

    Args:
        url: As the user gave it, with or without `/v1`.
        insecure: Whether tokens and texts may go to another machine unencrypted.

    Raises:
        ConfigError: It is no address, the connection would not be encrypted, or something else answers there.
        ServerUnreachable: Nothing answers.
    """
    url = server_address(url)
    if origin(url)[0] == "http" and not (insecure or is_local(url)):
        raise ConfigError(
            f"{url}: your token, and what your programs say, would cross the network unencrypted. Use https, or a "
            "tunnel (ssh -L 8400:127.0.0.1:8400 HOST, and http://127.0.0.1:8400); or give --insecure, if you trust the "
            "network"
        )
    answer = _get_answer(url, "/health", {})
    try:
        is_server = isinstance(answer.json()["ready"], bool)
    except (ValueError, KeyError, TypeError):
        is_server = False
    if answer.status_code == 400:  # it does not know its name
        raise ConfigError(f"{url}: {read_error(answer)}")
    if not is_server:
        raise ConfigError(
            f"{url} is no trainer server: {url}/health answered {answer.status_code}, and not whether it is ready. "
            "Give the root of what `art-langgraph serve` serves"
        )
    return url


def check_token(connection: Connection) -> TokenInfo:
    """What the token of a connection is for.

    Raises:
        ConfigError: The server refuses the token, or it has a version that this one does not fit.
        ServerUnreachable: Nothing answers.
    """
    answer = _get_answer(connection.url, "/api/token", {"Authorization": f"Bearer {connection.api_key}"})
    if answer.status_code != 200:
        raise ConfigError(f"{connection.url} does not take the token: {read_error(answer)}")
    try:
        token = TokenInfo.model_validate_json(answer.content)
    except ValidationError:
        raise ConfigError(
            f"{connection.url}/api/token does not say what the token is for: {answer.text[:200]}"
        ) from None
    if series(token.version) != series(mine := version("art-langgraph")):
        numbers = ".".join(map(str, series(token.version)))
        raise ConfigError(
            f"{connection.url} has art-langgraph {token.version}, and this machine has {mine}, which may speak to it "
            f"in another way. Install its version here: pip install 'art-langgraph=={numbers}.*'"
        )
    return token


def series(number: str) -> tuple[int, ...]:
    """The versions that understand one another begin with the same numbers: the first one, and before 1.0 the second
    too."""
    major, minor = (int(part) for part in (*re.findall(r"\d+", number), "0", "0")[:2])
    return (major,) if major else (major, minor)


def _get_answer(url: str, path: str, headers: dict[str, str]) -> httpx.Response:
    try:
        return get(f"{url}{path}", headers=headers, timeout=_TIMEOUT)
    except httpx.HTTPError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise ServerUnreachable(
                f"{url} has a certificate that this machine does not trust ({error}). If it is of an authority of your "
                "own, set SSL_CERT_FILE to that authority's certificate"
            ) from None
        remedy = "Is it running, with a --host that other machines reach, and is its port open?"
        raise unreachable(url, error, remedy) from None
