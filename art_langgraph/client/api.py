"""Requests to the trainer server, and the errors of those that fail."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel

from art_langgraph.client.outages import STALL_ERRORS, retry_seconds, unreachable
from art_langgraph.client.servers import register_server
from art_langgraph.client.transport import PatientAsyncClient
from trainer_server.common import Connection, TokenInfo, tracing
from trainer_server.common.jsonl import from_json, to_json
from trainer_server.wire import ConfigError, ServerError
from trainer_server.wire.errors import HOW_TO_START
from trainer_server.wire.headers import REQUEST
from trainer_server.wire.text import beginning

Record = TypeVar("Record", bound=BaseModel)


class ServerAPI:
    """A connection to the trainer server: the base of `TrainerClient`.

    Args:
        base_url: Address of the server; None: ART_BASE_URL, else the local server's file.
        api_key: Its key; None: ART_API_KEY, else the local server's file.
        retry_for: Seconds for which requests are repeated while no server answers; 0: not at all. None: ART_RETRY_FOR,
            else 120.
    """

    def __init__(
        self, base_url: str | None = None, api_key: str | None = None, *, retry_for: float | None = None
    ) -> None:
        self.connection = Connection.find(base_url, api_key)
        self.retry_for = retry_seconds(retry_for)
        register_server(self.connection)
        self._http = PatientAsyncClient(
            self.retry_for,
            lost_errors=STALL_ERRORS,
            base_url=self.connection.url,
            headers={"Authorization": f"Bearer {self.connection.api_key}"},
            timeout=httpx.Timeout(60.0, connect=5.0),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def token(self) -> TokenInfo:
        """Name, scope and expiry of the token that this client has."""
        return await self._read(TokenInfo, "GET", "/api/token")

    async def require_admin(self, what: str) -> None:
        """Checks that the token has the scope admin, before work that would be lost without it.

        Args:
            what: What needs it, for the message: "keep_best=True promotes versions".

        Raises:
            ConfigError: It has another scope.
        """
        if (token := await self.token()).scope != "admin":
            raise ConfigError(
                f"{what}, which needs a token of scope admin: the token {token.name!r} for {self.connection.url} has "
                f"the scope {token.scope}. Whoever runs the server can create one (art-langgraph tokens create)"
            )

    async def _read(self, kind: type[Record], method: str, path: str, **options: Any) -> Record:
        """Sends a request, and reads the record in the answer. Raises what `_request` raises."""
        return from_json(kind, (await self._request(method, path, **options)).text)

    async def _request(
        self, method: str, path: str, *, record: BaseModel | str | None = None, **options: Any
    ) -> httpx.Response:
        """Sends a request.

        Args:
            method: HTTP method.
            path: Path of the request.
            record: Its body, or the JSON of it; None: `options` has it, or there is none.
            options: Those of httpx.

        Raises:
            ServerError: The server refuses.
            ServerUnreachable: The server does not answer.
        """
        headers = tracing.headers() if method != "GET" else {}
        if record is not None:  # httpx's own `json=` fails on half surrogate pairs
            headers = {**headers, "Content-Type": "application/json"}
            options["content"] = record if isinstance(record, str) else to_json(record)
        try:
            answer = await self._http.request(method, path, headers=headers, **options)
        except httpx.TransportError as error:
            raise unreachable(self.connection.url, error, f"{HOW_TO_START}.") from None
        if answer.is_success:
            return answer
        raise read_error(answer)


def read_error(answer: httpx.Response) -> ServerError:
    """An error response of the server as an exception."""
    try:
        problem = answer.json()["error"]
        message, code = str(problem["message"]), problem.get("code")
    except (ValueError, KeyError, TypeError):
        message, code = beginning(answer.text, 500), None
    number = f", request {answer.headers[REQUEST]}" if answer.status_code >= 500 and REQUEST in answer.headers else ""
    return ServerError(f"{message} (HTTP {answer.status_code}{number})", status=answer.status_code, code=code)
