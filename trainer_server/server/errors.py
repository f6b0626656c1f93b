"""Errors of all parts of the server as HTTP answers, in the shape of the client API."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from trainer_server.engines.slots import NoFreeSlot
from trainer_server.gateway.errors import APIError
from trainer_server.ledger.base import LedgerError
from trainer_server.policies.export import ExportAbandoned
from trainer_server.server.access.scopes import methods_of
from trainer_server.wire import ARTError, Conflict, EngineError, Gone, NotFound, NotStored, Refusal, Unprocessable

log = logging.getLogger("trainer_server")

STATUS: dict[type[ARTError], int] = {
    NotFound: 404,
    Conflict: 409,
    Gone: 410,
    Unprocessable: 422,
    NotStored: 507,
    LedgerError: 503,  # unless its disk is full, which is NotStored
    ExportAbandoned: 499,
}
"""HTTP status of each error that parts of the server raise."""


def answer(error: Exception, path: str = "") -> Response:
    """An error as an HTTP answer. path: that of the request."""
    if isinstance(error, APIError):
        return error.response(path)
    if isinstance(error, EngineError | NoFreeSlot):
        log.warning("%s: an engine cannot take what it needs: %s", path, error)
        return APIError(503, str(error), code="engine_not_ready", retry_after=5).response(path)
    status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
    code, param = (error.code, error.param) if isinstance(error, Refusal) else (None, None)
    return APIError(status, str(error), code=code, param=param).response(path)


def add_error_handlers(app: FastAPI) -> None:
    """Has an application answer errors in the shape of the client API."""

    async def refuse(request: Request, error: Exception) -> Response:
        return answer(error, request.url.path)

    kinds: list[type[Exception]] = [APIError, EngineError, NoFreeSlot, *STATUS]
    for kind in kinds:
        app.add_exception_handler(kind, refuse)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        what, kind = first["msg"], request.headers.get("Content-Type")
        if not where and "json" not in (kind or ""):  # the body was read as a text
            what = f"the Content-Type is {kind}: send the header `Content-Type: application/json`"
        return APIError(422, f"{where or 'body'}: {what}", code="invalid_request", param=where).response()

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        refusal = APIError(error.status_code, f"{request.method} {path}: {error.detail}").response(path)
        if error.status_code == 405:
            refusal.headers["Allow"] = ", ".join(methods_of(path))
        return refusal
