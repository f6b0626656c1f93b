"""Who may use a route: the scope that each needs, with its name in the audit log, and the owner of a rollout. A route
that is not in the table answers nobody."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.requests import Request
from starlette.routing import compile_path
from starlette.types import Scope as ASGIScope

from trainer_server.common.extensions import DASHBOARD
from trainer_server.gateway.errors import APIError
from trainer_server.server.access.tokens import Scope, Token
from trainer_server.wire.headers import ROLLOUT

LOGIN = "/ui/login"
"""Path of the page on which a browser gives its token."""
_TOKEN = "token"
"""Key of a request's state."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may use a route.

    Args:
        scope: What a token needs; None: the route needs no token.
        action: What the audit log calls it; None: it is not in the log.
        anywhere: Whether every server of a fleet answers it; else the one that trains does.
        extension: Module of the extension whose route it is; None: the core answers it.
    """

    scope: Scope | None
    action: str | None = None
    anywhere: bool = False
    extension: str | None = None


_ROLLOUT, _TRAIN = Rule(Scope.rollout), Rule(Scope.train)
_PAGE = Rule(Scope.train, extension=DASHBOARD)
_OPEN_ANYWHERE, _ANYWHERE = (Rule(scope, anywhere=True) for scope in (None, Scope.rollout))

RULES: dict[str, Rule] = {
    # What engines on other machines fetch.
    "GET /api/policies/{name}/versions/{number}/files": Rule(Scope.engine, anywhere=True),
    "GET /api/policies/{name}/versions/{number}/files/{file}": Rule(Scope.engine, "version.fetch", anywhere=True),
    # Answers, and the runs that ask for them.
    "POST /v1/chat/completions": _ANYWHERE,
    "POST /v1/responses": _ANYWHERE,
    "POST /v1/messages": _ANYWHERE,
    "POST /v1/messages/count_tokens": _ANYWHERE,
    "POST /v1/completions": _ANYWHERE,
    "GET /v1/models": _ANYWHERE,
    "PUT /api/rollouts/{rollout}": _ANYWHERE,
    "GET /api/rollouts/{rollout}": _ANYWHERE,
    "POST /api/rollouts/{rollout}/reward": _ANYWHERE,
    "PUT /api/rollouts/{rollout}/trace": _ANYWHERE,
    "GET /api/rollouts/{rollout}/trace": Rule(Scope.rollout, extension=DASHBOARD),
    "POST /api/rollouts/traces": _ANYWHERE,
    "DELETE /api/rollouts/{rollout}": _ANYWHERE,
    "POST /api/rollouts/release": _ANYWHERE,
    "PUT /api/rollouts/{rollout}/records/{call}/{run}": _ROLLOUT,
    "GET /api/rollouts/{rollout}/records/{call}": _ROLLOUT,
    "GET /api/completions/{completion_id}": _ANYWHERE,
    "POST /api/completions/find": _ANYWHERE,
    "GET /api/policies": _ROLLOUT,
    "GET /api/policies/{name}": _ROLLOUT,
    "GET /api/policies/{name}/candidate": _ROLLOUT,
    "GET /api/policies/{name}/versions": _ROLLOUT,
    "GET /api/policies/{name}/versions/{number}": _ROLLOUT,
    "GET /api/token": _ANYWHERE,
    "GET /metrics": _ANYWHERE,
    "GET /openapi.json": _ANYWHERE,
    "HEAD /openapi.json": _ANYWHERE,
    # What trains, and what shows the runs of everybody.
    "POST /api/policies": Rule(Scope.train, "policy.create"),
    "POST /api/policies/{name}/steps": Rule(Scope.train, "step"),
    "POST /api/policies/{name}/sft": Rule(Scope.train, "sft"),
    "GET /api/policies/{name}/steps": _TRAIN,
    "PUT /api/policies/{name}/versions/{number}/score": Rule(Scope.train, "version.score"),
    "GET /api/policies/{name}/versions/{number}/export": Rule(Scope.train, "version.export"),
    "GET /api/jobs": _TRAIN,
    "GET /api/jobs/{job_id}": _TRAIN,
    "POST /api/jobs/{job_id}/cancel": Rule(Scope.train, "job.cancel"),
    "GET /api/rollouts": _TRAIN,
    "POST /api/completions": Rule(Scope.train, "completions.import"),
    "GET /api/engines": _TRAIN,
    "GET /api/status": _PAGE,
    "GET /api/policies/{name}/curves": _PAGE,
    "GET /": _PAGE,
    "GET /ui/now": _PAGE,
    "GET /ui/throughput.json": _PAGE,
    "GET /ui/policies/{name}": _PAGE,
    "GET /ui/jobs": _PAGE,
    "GET /ui/jobs/{job_id}": _PAGE,
    "GET /ui/events": _PAGE,
    "GET /ui/runs": _PAGE,
    "GET /ui/runs/rows": _PAGE,
    "GET /ui/runs/newer": _PAGE,
    "GET /ui/runs/{run_id}": _PAGE,
    "GET /ui/completions/{completion_id}": _PAGE,
    "GET /ui/groups": _PAGE,
    "GET /ui/scenarios": _PAGE,
    "GET /ui/diff": _PAGE,
    "GET /ui/{path:path}": _PAGE,
    # What users of a policy get, and what is lost for ever.
    "PUT /api/policies/{name}/promotion": Rule(Scope.admin, "policy.promote"),
    "PUT /api/policies/{name}/candidate": Rule(Scope.admin, "candidate.begin"),
    "DELETE /api/policies/{name}/candidate": Rule(Scope.admin, "candidate.end"),
    "DELETE /api/policies/{name}/versions/{number}": Rule(Scope.admin, "version.delete"),
    "DELETE /api/policies/{name}": Rule(Scope.admin, "policy.delete"),
    "POST /api/rollouts/erase": Rule(Scope.admin, "rollout.delete"),
    # What anybody may see: whether the server is ready, and the way in and out.
    "GET /health": _OPEN_ANYWHERE,
    "GET /ready": _OPEN_ANYWHERE,
    f"GET {LOGIN}": Rule(None, extension=DASHBOARD),
    f"POST {LOGIN}": Rule(None, "login", extension=DASHBOARD),
    "POST /ui/logout": Rule(Scope.rollout, extension=DASHBOARD),
    "GET /ui/static/{name:path}": Rule(None, anywhere=True, extension=DASHBOARD),
}
"""By method and path of the route."""
BEGIN = {
    "POST /v1/chat/completions",
    "POST /v1/responses",
    "POST /v1/messages",
    "POST /v1/completions",
    "PUT /api/rollouts/{rollout}",
    "PUT /api/rollouts/{rollout}/trace",
    "PUT /api/rollouts/{rollout}/records/{call}/{run}",
}
"""Routes by which a rollout begins: the token becomes its owner. Other routes look for an owner and name none."""
BELOW_ROLLOUT = re.compile(r"/rollouts/[^/]*/v1(?:/|$)")
"""Addresses of the gateway that name a rollout, as `RolloutPaths` reads them."""
_FORMS = [(name.split()[0], compile_path(name.split()[1])[0], rule) for name, rule in RULES.items()]


def rule_of(scope: ASGIScope) -> Rule | None:
    """The rule of the route that a request was led to; None: it was led to none, or that has no rule."""
    path = getattr(scope.get("route"), "path", None)
    return RULES.get(f"{scope['method']} {path}")


def answered_anywhere(method: str, path: str) -> bool:
    """Whether every server of a fleet answers a request; else the one that trains does."""
    if BELOW_ROLLOUT.match(path):
        return True
    return any(rule.anywhere for name, form, rule in _FORMS if name == method and form.match(path))


def methods_of(path: str) -> list[str]:
    """The methods that an address takes, in their order."""
    routes = (route.split() for route in RULES)
    return sorted({method for method, form in routes if compile_path(form)[0].match(path)})


def set_token(scope: ASGIScope, token: Token | None) -> None:
    """Sets the token of a request; None: it has none that counts."""
    scope.setdefault("state", {})[_TOKEN] = token


def token_of(scope: ASGIScope) -> Token | None:
    """The token that a request came with; None: it has none that counts."""
    token: Token | None = scope.get("state", {}).get(_TOKEN)
    return token


async def check_scope(request: Request) -> None:
    """Lets a request pass to its route, if its token has the scope. A dependency of all routes; async, because
    FastAPI calls others on a thread.

    Raises:
        APIError: 403, the token has another scope, or the route has no rule.
    """
    scope, rule = request.scope, rule_of(request.scope)
    if rule is None:
        route = f"{request.method} {getattr(scope.get('route'), 'path', scope['path'])}"
        raise APIError(403, f"{route} has no entry in RULES (server/access/scopes.py)", code="no_rule")
    token = token_of(scope)
    if rule.scope is None or (token is not None and token.scope.covers(rule.scope)):
        return
    what = "no token" if token is None else f"the token {token.name!r}, of scope {token.scope}"
    raise APIError(
        403,
        f"{request.method} {scope['path']:.200} needs a token of scope {rule.scope}, and the request has {what}. "
        f"Whoever runs the server can create one: art-langgraph tokens create NAME --scope {rule.scope}",
        code="scope_missing",
    )


async def check_owner(request: Request) -> None:
    """Lets a request pass to its route, if its token may use the rollout that its path or its header names. A
    dependency of all routes; a route that takes ids in its body checks them by itself.

    Raises:
        APIError: 403, the rollout belongs to another token.
        LedgerError: The owner cannot be read or written.
    """
    path = getattr(request.scope.get("route"), "path", "")
    rollout = request.path_params.get("rollout") or (request.headers.get(ROLLOUT) if path.startswith("/v1/") else None)
    if rollout:
        await request.app.state.server.owners.check(
            request.scope, [rollout], begins=f"{request.method} {path}" in BEGIN
        )
