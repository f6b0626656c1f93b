"""Pages: templates, the headers that every answer has, and how texts of users and models are shown."""

from __future__ import annotations

import json
import math
import re
import time
import unicodedata
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from trainer_server.common.run_tree import call_line
from trainer_server.gateway.errors import APIError
from trainer_server.ledger.base import LedgerError
from trainer_server.server.dependencies import RolloutRoute
from trainer_server.wire import NotFound, Unprocessable
from trainer_server.wire.text import UNSEEN, writable

FOLDER = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every page. Scripts and styles are files of this server; nothing in a page runs, whatever stands in it."""
MOST = 3_000
"""Characters of a text that a page shows at first."""

_ODD = re.compile(f"[{UNSEEN}\ud800-\udfff]")
"""Characters that are named by their number: those that cannot be seen, and halves of surrogate pairs."""


def render_text(text: object, most: int = MOST) -> Markup:
    """A text of a user or a model as HTML: escaped, with characters that cannot be seen named, and cut where it is
    long. What was cut can be opened up to ten times `most`."""
    whole = text if isinstance(text, str) else "" if text is None else as_json(text)
    first, rest = whole[:most], whole[most:]
    if not rest:
        return _mark_odd(first)
    more = rest[: 9 * most]
    count = len(rest) - len(more)
    end = Markup('<p class="note">… {} more characters: the API has them</p>').format(f"{count:,}") if count else ""
    summary = f"{len(rest):,} more characters"
    return Markup('{}<details class="more"><summary>{}</summary><span class="text">{}</span>{}</details>').format(
        _mark_odd(first), summary, _mark_odd(more), end
    )


def label(text: object, most: int) -> Markup:
    """The same for a link, a summary or a cell: a text of more than `most` characters is cut, and its first 1,000 are
    seen when the pointer rests on it."""
    whole = text if isinstance(text, str) else "" if text is None else as_json(text)
    if len(whole) <= most:
        return _mark_odd(whole)
    title = _ODD.sub(lambda odd: f"U+{ord(odd[0]):04X}", whole[:1_000])
    return Markup('<span title="{}">{}…</span>').format(title, _mark_odd(whole[: most - 1]))


def plain(text: str, most: int) -> str:
    """The same where no element can be: in a page's title."""
    return _ODD.sub(lambda odd: f"U+{ord(odd[0]):04X}", text if len(text) <= most else text[: most - 1] + "…")


def _mark_odd(text: str) -> Markup:
    parts = []
    at = 0
    for odd in _ODD.finditer(text):
        code = ord(odd[0])
        name = unicodedata.name(odd[0], "control character").lower()
        parts.append(escape(text[at : odd.start()]))
        parts.append(Markup('<span class="odd" title="{}">U+{:04X}</span>').format(name, code))
        at = odd.end()
    return Markup("").join([*parts, escape(text[at:])])


def as_json(value: object) -> str:
    """A value as JSON that can be read by people."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def number(value: object, digits: int = 3) -> str:
    """A number for people; empty for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    return f"{value:.2e}" if value and abs(value) < 10**-digits else f"{value:.{digits}f}"


def when(moment: float | None) -> Markup:
    """A Unix time: shown in UTC; the page's script shows it in the reader's time zone."""
    if moment is None:
        return Markup("")
    try:
        at = datetime.fromtimestamp(moment, UTC)
    except (ValueError, OverflowError, OSError):
        return escape(moment)
    return Markup('<time datetime="{}">{}</time>').format(
        at.isoformat(timespec="milliseconds"), at.strftime("%Y-%m-%d %H:%M:%S")
    )


def ago(moment: float) -> str:
    """How long ago a Unix time is: `3 min`."""
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def address(path: str, **query: object) -> str:
    """A path of this server with a query. None and empty values are left out."""
    query = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(query, errors='replace')}" if query else path


def part(text: object) -> str:
    """A text as a part of a path."""
    return quote(str(text), safe="", errors="replace")


_templates = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {
    "shown": render_text,
    "label": label,
    "plain": plain,
    "number": number,
    "when": when,
    "ago": ago,
    "part": part,
    "as_json": as_json,
    "call_line": call_line,
}
_templates.globals |= {"address": address}


def page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page, or a part of one.

    Args:
        request: That it answers.
        template: Name of the template.
        status: HTTP status.
        values: What the template shows.
    """
    text = _templates.get_template(template).render(request=request, path=request.url.path, **values)
    return HTMLResponse(writable(text), status, headers=HEADERS)


class PageRoute(RolloutRoute):
    """A route whose errors are pages too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except NotFound as error:
                return page(request, "error.html", 404, title="Not found", message=str(error))
            except RequestValidationError as error:
                first = error.errors()[0]
                message = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
                return page(request, "error.html", 422, title="That cannot be asked", message=message)
            except Unprocessable as error:
                return page(request, "error.html", 422, title="That cannot be asked", message=str(error))
            except APIError as error:
                return page(request, "error.html", error.status, title="Refused", message=error.message)
            except LedgerError as error:
                return page(request, "error.html", 503, title="The ledger does not answer", message=str(error))

        return answer
