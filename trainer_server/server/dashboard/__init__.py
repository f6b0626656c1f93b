"""A page that shows policies, versions and jobs; it asks the API with the token that its reader gives it."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

_PAGE = (Path(__file__).parent / "index.html").read_text(encoding="utf-8")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


@router.get("/")
async def page() -> HTMLResponse:
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY})
