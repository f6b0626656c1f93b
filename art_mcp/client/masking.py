"""Keeps the secrets that an MCP server was given out of what it answers, and so out of scenarios, runs and prompts."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

from art_mcp.client.connection.sdk import Progress, Stdio, Target
from art_mcp.client.live import Source
from art_mcp.worlds.change import Change
from trainer_server.wire import MCPError

LEAST = 8
"""Characters of a secret at least: a shorter one would be found in words that have nothing to do with it."""

_NAMES = re.compile(
    r"""
    token | secret | passw | passphrase | pwd | credential | authoriz | cookie | bearer | signature | session_?id
    | (?:api|access|auth|private|secret|account|master|signing|encryption|license|client|storage|service)[ ._-]*key
    # Short words are whole ones: PAT is in PATH, key in monkey.
    | (?:^|[^a-z]) (?: pat | pass | pin | otp | jwt | sas | sig | auth | keys? | creds? | psk | hmac ) (?:$|[^a-z])
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Names of environment variables, headers, options and parameters of URLs whose values are secrets. Before they are
searched, `apiKey` becomes `api_Key`."""

_NO_PASSWORDS = {"x-oauth-basic", "x-token-auth", "x", "X", "api_token"}
"""What stands for a password where the user is a token."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")

_HEADER = re.compile(r"([A-Za-z][\w-]*):\s*(\S.*)")
"""`Authorization: Bearer …` as a word of a command."""


def secrets_of(target: Target) -> dict[str, str]:
    """The secrets that a server is given, and what a reader sees in their place, longest first.

    Secrets are the values of environment variables, headers, and options of a command (`--api-key=…`, `--token …`)
    that are named like one, such as GITHUB_TOKEN or Authorization. Of the URLs in any of them, and of the server's own,
    they are the password, a user that is a token, and the values of parameters that are named like one. Values of fewer
    than LEAST characters are left out.

    Args:
        target: The server.
    """
    secrets: dict[str, str] = {}
    for name, value in _given(target):
        for label, secret in _secrets(name, value):
            if len(secret) >= LEAST:
                secrets.setdefault(secret, f"[{label}]")
    return {secret: secrets[secret] for secret in sorted(secrets, key=len, reverse=True)}


def _given(target: Target) -> Iterator[tuple[str, str]]:
    """What a server is given: names, empty where there is none, with values."""
    if not isinstance(target, Stdio):
        yield from target.headers.items()
        yield "", target.url
        return
    yield from target.env.items()
    option = ""
    for word in target.command:
        name, equals, value = word.partition("=")
        header = _HEADER.fullmatch(word)
        if equals and re.fullmatch(r"-*[A-Za-z][\w.-]*", name):  # --token=…, TOKEN=…
            yield name.lstrip("-"), value
        elif header and "://" not in word:
            yield header[1], header[2]
        elif not word.startswith("-"):
            yield option, word
        else:
            yield "", word
        option = word.lstrip("-") if word.startswith("--") and not equals else ""


def _named_secret(name: str) -> bool:
    return _NAMES.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)) is not None


def _secrets(name: str, value: str) -> Iterator[tuple[str, str]]:
    """The secrets in a value, each with the name that a reader sees."""
    if _named_secret(name):
        yield name, value
        scheme, space, rest = value.partition(" ")
        if space:  # "Bearer …": the server may tell the token alone
            yield name, rest
            if scheme.lower() == "basic":
                with suppress(ValueError):
                    user, _, password = b64decode(rest, validate=True).decode().partition(":")
                    yield from ((name, part) for part in _credentials(user, password))
    for url in _URL.findall(value):
        try:
            parts = urlsplit(url)
        except ValueError:
            continue
        label = name or "URL"
        for raw in _credentials(parts.username or "", parts.password or ""):
            yield from ((label, part) for part in _spellings(raw))
        for query in (parts.query, parts.fragment):
            for pair in re.split("[&;]", query):
                key, equals, raw = pair.partition("=")
                if equals and _named_secret(unquote(key)):
                    label = re.sub(r"[^\w.-]", "", unquote(key)) or "URL"
                    yield from ((label, part) for part in _spellings(raw))


def _credentials(user: str, password: str) -> list[str]:
    """What is secret of a user and a password: the password, and a user that is a token: `https://ghp_…@github.com`. A
    name, such as postgres, stands in answers for other reasons."""
    token = not password or (len(user) >= 16 and re.search(r"\d", user)) or password in _NO_PASSWORDS
    return [part for part in (password, user if token else "") if part]


def _spellings(raw: str) -> set[str]:
    """A part of a URL as it stands there, and decoded."""
    return {raw, unquote(raw), unquote_plus(raw)}


class Masked:
    """A source whose answers name secrets instead of having them: "[GITHUB_TOKEN]".

    Args:
        source: Answers the requests.
        secrets: As `secrets_of` gives them.
    """

    def __init__(self, source: Source, secrets: Mapping[str, str]) -> None:
        self._source = source
        self._secrets = secrets

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """The answer to a request. Raises MCPError."""

        async def masked(at: float, total: float | None, message: str | None) -> None:
            if progress:
                await progress(at, total, message and self._text(message))

        try:
            answer: dict[str, Any] = self._masked(await self._source.request(method, params, progress and masked))
        except MCPError as error:
            raise MCPError(self._text(str(error)), failure=error.failure, code=error.code) from None
        return answer

    async def changes(self) -> list[Change] | None:
        """See Source."""
        return await self._source.changes()

    async def close(self) -> None:
        """Closes the source."""
        await self._source.close()

    def _masked(self, value: Any) -> Any:
        """A JSON value with the texts in it masked, keys of objects included."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self._text(key): self._masked(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._masked(inner) for inner in value]
        return value

    def _text(self, text: str) -> str:
        for secret, name in self._secrets.items():
            text = text.replace(secret, name)
        return text
