"""Errors in OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`, and in Anthropic's."""

from __future__ import annotations

from starlette.responses import JSONResponse

from trainer_server.wire import SERVER_STOPPING
from trainer_server.wire.headers import COMPLETION

_ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
"""Ends of the paths that are answered in Anthropic's shape."""
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_MOST_QUOTED = 5_000
"""Characters of a message, or of the name of a field: it may quote what a client sent."""
_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class APIError(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        message: What is wrong, with the value, and what to do about it.
        code: Short machine-readable reason.
        param: The field of the request that is wrong.
        retry_after: Seconds after which the client may try again; None: no such advice.

    Attributes:
        completion: Id of the request's row in the ledger; None: it has none.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(_cut(message))
        self.status, self.message, self.code, self.param = status, _cut(message), code, param and _cut(param)
        self.retry_after = retry_after
        self.completion: str | None = None

    def body(self) -> dict[str, object]:
        """The body of the answer, in OpenAI's shape."""
        kind = _KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        param = None if self.param is None else _printable(self.param)
        return {"error": {"message": _printable(self.message), "type": kind, "param": param, "code": self.code}}

    def anthropic_body(self) -> dict[str, object]:
        """The body of the answer, in Anthropic's shape. `code` and `param` are as in OpenAI's."""
        kind = _ANTHROPIC_KINDS.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        error = {"type": kind, "message": _printable(self.message), "code": self.code}
        return {"type": "error", "error": {**error, "param": None if self.param is None else _printable(self.param)}}

    def response(self, path: str = "") -> JSONResponse:
        """The HTTP answer.

        Args:
            path: Path of the request, on which the shape of the answer depends.
        """
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        if self.completion is not None:
            headers[COMPLETION] = self.completion
        body = self.anthropic_body() if path.endswith(_ANTHROPIC) else self.body()
        return JSONResponse(body, self.status, headers)


def stopping() -> APIError:
    """The error of requests that are under way when the server stops. Clients try again, perhaps at its successor."""
    message = "the server was stopped before the answer was complete: ask again once it is back"
    return APIError(503, message, code=SERVER_STOPPING, retry_after=5)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}…"


def _printable(text: str) -> str:
    """The text with halves of characters escaped. A request may hold them, and UTF-8 cannot carry them back."""
    return text.encode(errors="backslashreplace").decode()
