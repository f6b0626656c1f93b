"""Keeps the secrets that an MCP server was given out of what it answers, and so out of scenarios, runs and prompts."""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, quote, quote_plus, unquote, unquote_plus, urlsplit

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

_PAIR = re.compile(r"-*([A-Za-z][\w.-]*)=(.*)", re.DOTALL)
"""`--token=…`, `TOKEN=…`."""

_HEADER = re.compile(r"(?:-H)?([A-Za-z][\w-]*):\s*(\S.*)")
"""`Authorization: Bearer …` as a word of a command."""

_FIELD = re.compile(r"(?:^|[;&,\s])([A-Za-z][\w. -]{0,40}?)\s*=\s*([^;&,\s'\"]+)")
"""A field of a connection string: `AccountKey=…;`, `password=… host=…`."""

_TOKEN = re.compile(r"(?=[^/]*\d)(?=[^/]*[A-Za-z])[\w-]{20,}")
"""A segment of a path that is a token, as in the addresses of webhooks."""

_DEEPEST = 8
"""Values in values that are searched: JSON in a shell's command in JSON."""


def secrets_of(target: Target) -> dict[str, str]:
    """The secrets that a server is given, and what a reader sees in their place, longest first.

    Secrets are the values of environment variables, headers, and options of a command (`--api-key=…`, `-token …`) that
    are named like one, such as GITHUB_TOKEN or Authorization, and the fields of JSON, of connection strings and of a
    shell's command that are. Of the URLs in any of them, and of the server's own, they are the password, a user that is
    a token, segments of the path of 20 letters and digits or more, and the values of parameters that are named like
    one. Values of fewer than LEAST characters are left out.

    Args:
        target: The server.
    """
    secrets: dict[str, str] = {}
    for name, value in _server_inputs(target):
        for label, secret in _secrets(name, value):
            if len(secret) >= LEAST:
                secrets.setdefault(secret, f"[{label}]")
    return {secret: secrets[secret] for secret in sorted(secrets, key=len, reverse=True)}


def _server_inputs(target: Target) -> Iterator[tuple[str, str]]:
    """What a server is given: names, empty where there is none, with values."""
    if isinstance(target, Stdio):
        yield from target.env.items()
        yield from _arguments(target.command)
    else:
        yield from target.headers.items()
        yield "", target.url


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The values of a command, each with the name of its option."""
    option = ""
    for word in words:
        pair = _PAIR.fullmatch(word)
        header = None if "://" in word else _HEADER.fullmatch(word)
        if pair:
            yield pair[1], pair[2]
            yield from ((pair[1], first) for first in pair[2].split(maxsplit=1)[:1])  # `TOKEN=… server …`, of a shell
        elif header:
            yield header[1], header[2]
        elif not word.startswith("-"):
            yield option, word
        else:
            yield "", word
        option = word.lstrip("-") if word.startswith("-") and not pair else ""


def _named_secret(name: str) -> bool:
    return _NAMES.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)) is not None


def _secrets(name: str, value: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """The secrets in a value, each with the name that a reader sees."""
    if depth > _DEEPEST:
        return
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
        yield from _secrets_of_url(name, url)
    for inner_name, inner in _inside(value):
        yield from _secrets(inner_name, inner, depth + 1)


def _inside(value: str) -> Iterator[tuple[str, str]]:
    """The values in a value: JSON's, `NAME=value`, `Name: value`, a connection string's, a shell's command's."""
    if value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            yield from _leaves(json.loads(value))
            return
    if (pair := _PAIR.fullmatch(value) or _HEADER.fullmatch(value)) and "://" not in pair[0]:
        yield pair[1], pair[2]
    for field in _FIELD.finditer(_URL.sub("", value)):
        yield field[1], field[2]
    if any(character.isspace() for character in value):
        with suppress(ValueError):
            words = shlex.split(value)
            if len(words) > 1:
                yield from _arguments(words)


def _leaves(value: Any) -> Iterator[tuple[str, str]]:
    """The texts in JSON, each with its key, without a call for each level."""
    rest: list[tuple[str, Any]] = [("", value)]
    while rest:
        name, inner = rest.pop()
        if isinstance(inner, dict):
            rest += inner.items()
        elif isinstance(inner, list):
            rest += ((name, item) for item in inner)
        elif isinstance(inner, str):
            yield name, inner


def _secrets_of_url(name: str, url: str) -> Iterator[tuple[str, str]]:
    """The secrets in a URL, which stands in the value of `name`."""
    try:
        parts = urlsplit(url)
        secret = [*_credentials(parts.username or "", parts.password or ""), *_tokens(parts)]
    except ValueError:
        return
    for raw in secret:
        yield from ((name or "URL", part) for part in _spellings(raw))
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


def _tokens(url: SplitResult) -> list[str]:
    web = url.scheme.lower() in ("http", "https", "ws", "wss")
    return [segment for segment in url.path.split("/") if web and _TOKEN.fullmatch(segment)]


def _spellings(raw: str) -> dict[str, None]:
    """A part of a URL as it stands there, and decoded."""
    return dict.fromkeys((raw, unquote(raw), unquote_plus(raw)))


class Mask:
    """Replaces secrets in texts by their names.

    Args:
        secrets: As `secrets_of` gives them. They are masked as they stand, as URLs quote them, and as JSON does.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        spellings = {
            spelling: name
            for secret, name in secrets.items()
            for spelling in (
                secret,
                quote(secret),
                quote(secret, safe=""),
                quote_plus(secret),
                json.dumps(secret)[1:-1],
            )
        }
        self._secrets = {secret: spellings[secret] for secret in sorted(spellings, key=len, reverse=True)}

    def text(self, text: str) -> str:
        """The text with names in place of secrets."""
        for secret, name in self._secrets.items():
            text = text.replace(secret, name)
        return text

    def log(self, text: str) -> str:
        """A message of a log with names in place of secrets. Empty: it has a secret that the end of a line breaks."""
        text = self.text(text)
        joined = "".join(text.split())
        return "" if any("".join(secret.split()) in joined for secret in self._secrets) else text


class MaskedSource:
    """A source whose answers name secrets instead of having them: "[GITHUB_TOKEN]".

    Args:
        source: Answers the requests.
        secrets: As for `Mask`.
    """

    def __init__(self, source: Source, secrets: Mapping[str, str]) -> None:
        self._source = source
        self._text = Mask(secrets).text

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """The answer to a request. Raises MCPError."""

        async def forward_progress(at: float, total: float | None, message: str | None) -> None:
            if progress:
                await progress(at, total, message and self._text(message))

        try:
            answer: dict[str, Any] = self._mask_value(
                await self._source.request(method, params, progress and forward_progress)
            )
        except MCPError as error:
            raise error.with_texts(self._text) from None
        return answer

    async def changes(self) -> list[Change] | None:
        """See Source."""
        return await self._source.changes()

    async def rewind(self) -> bool:
        """See Source."""
        return await self._source.rewind()

    async def close(self) -> None:
        """Closes the source."""
        await self._source.close()

    def _mask_value(self, value: Any) -> Any:
        """A JSON value with the texts in it masked, keys of objects included."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self._text(key): self._mask_value(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._mask_value(inner) for inner in value]
        return value
