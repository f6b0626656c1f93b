"""The login page, the way out, and the files of the dashboard."""

from __future__ import annotations

import mimetypes
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Request, Response
from starlette.responses import FileResponse, RedirectResponse

from trainer_server.dashboard.render import FOLDER, HEADERS, PageRoute, page
from trainer_server.dashboard.sessions import SECONDS, Sessions, of_other_page
from trainer_server.server.access.auth import authorized
from trainer_server.server.access.bodies import read_body
from trainer_server.server.access.request_log import note
from trainer_server.server.access.scopes import LOGIN
from trainer_server.wire import ConfigError, NotFound

router = APIRouter(prefix="/ui", include_in_schema=False, route_class=PageRoute)

_MOST_BYTES = 4096
"""Of the form. It comes from anybody."""
_STATIC = FOLDER / "static"
_FILES = {path.relative_to(_STATIC).as_posix(): path for path in _STATIC.rglob("*") if path.is_file()}


@router.get("/login")
async def show_login(request: Request, next: str = "/") -> Response:
    """Asks for the token."""
    if authorized(request.scope):
        return RedirectResponse(_local(next), status_code=303)
    return page(request, "login.html", next=_local(next), problem="")


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Takes the token, and gives a cookie for it."""
    sessions: Sessions = request.app.state.sessions
    if of_other_page(request.headers):
        problem = "The form was sent by a page of another server. Log in on this page."
        return page(request, "login.html", 403, next="/", problem=problem)
    body = await read_body(request.receive, _MOST_BYTES)
    if body is None:
        return page(request, "login.html", 413, next="/", problem="That is no token: it is too long.")
    form = parse_qs(body.decode("utf-8", "replace"))
    next = _local(form.get("next", ["/"])[0])
    address = request.client.host if request.client else "-"
    try:
        login = sessions.login(form.get("token", [""])[0], address)
    except ConfigError as error:
        return page(request, "login.html", 503, next=next, problem=str(error))
    if login is None:
        problem = "The token is wrong, has expired or was revoked."
        if many := sessions.too_many(address):
            problem = "Too many wrong tokens came from this address. The right one is taken at any time."
        return page(request, "login.html", 429 if many else 401, next=next, problem=problem)
    token, value = login
    note(request.scope, token=token)
    answer = RedirectResponse(next, status_code=303)
    answer.set_cookie(
        sessions.cookie,
        value,
        max_age=int(SECONDS),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """Forgets the cookie."""
    answer = RedirectResponse(LOGIN, status_code=303)
    answer.delete_cookie(request.app.state.sessions.cookie, httponly=True, samesite="strict")
    return answer


@router.get("/static/{name:path}")
async def static(name: str) -> Response:
    """A script, a style or a picture."""
    if (path := _FILES.get(name)) is None:
        raise NotFound(f"the dashboard has no file {name!r:.100}", code="not_found")
    kind = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0] or "text/plain"
    return FileResponse(path, media_type=kind, headers={**HEADERS, "Cache-Control": "no-cache"})


def _local(address: str) -> str:
    """An address on this server; `/` for any other."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "/"
    local = address.startswith("/") and not address.startswith(("//", "/\\")) and not (parts.scheme or parts.netloc)
    return address if local and address.isprintable() and "\\" not in address else "/"
