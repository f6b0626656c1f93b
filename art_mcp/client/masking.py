"""Keeps the secrets that an MCP server was given out of what it answers, and so out of scenarios, runs and prompts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from art_mcp.client.connection.sdk import Progress, Stdio, Target
from art_mcp.client.live import Source
from art_mcp.worlds.change import Change
from trainer_server.wire import MCPError

LEAST = 8
"""Characters of a secret at least: a shorter one would be found in words that have nothing to do with it."""

_NAMES = re.compile(r"key|token|secret|passw|pwd|credential|authoriz|cookie|(?:^|[_-])auth(?:$|[_-])", re.IGNORECASE)
"""Names of environment variables and headers whose values are secrets."""


def secrets_of(target: Target) -> dict[str, str]:
    """The secrets that a server is given, and what a reader sees in their place, longest first.

    Secrets are the values of environment variables and headers that are named like one, such as GITHUB_TOKEN or
    Authorization, and the passwords in URLs. Values of fewer than LEAST characters are left out.

    Args:
        target: The server.
    """
    given = target.env if isinstance(target, Stdio) else target.headers
    secrets = {secret: f"[{name}]" for name, value in given.items() for secret in _secrets(name, value)}
    return {secret: secrets[secret] for secret in sorted(secrets, key=len, reverse=True)}


def _secrets(name: str, value: str) -> Iterator[str]:
    parts: list[str] = []
    if _NAMES.search(name):
        parts += [value, value.partition(" ")[2]]  # "Bearer …": the server may tell the token alone
    if "://" in value:
        try:
            password = urlsplit(value).password or ""
        except ValueError:
            password = ""
        parts += [password, unquote(password)]
    for part in parts:
        if len(part) >= LEAST:
            yield part


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
