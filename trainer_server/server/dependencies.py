"""Parameters of routes: the server, and the policy or version that a path names; and routes of rollouts."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from trainer_server.server.server import Server
from trainer_server.wire import MAX_VERSION, NAME_PATTERN, Conflict, NotFound, Policy, Version

_SLASH = re.compile("%2f", re.IGNORECASE)


class RolloutRoute(APIRoute):
    """A route whose path names a rollout. The id came in a header perhaps, and may have slashes: they are `%2F` in the
    path. Servers decode paths before routes see them, so that such an id would be several parts."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """How far the route fits a request, and what is in its path: Starlette's `Route.matches`."""
        raw = (scope.get("raw_path") or b"").decode("latin-1")
        if not _SLASH.search(raw):
            return super().matches(scope)
        path = "%2F".join(unquote(part).replace("%", "%25") for part in _SLASH.split(raw))
        match, child_scope = super().matches({**scope, "path": path})
        params: dict[str, Any] = child_scope.get("path_params", {})
        return match, {**child_scope, "path_params": {name: unquote(value) for name, value in params.items()}}


async def get_server(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


ServerDep = Annotated[Server, Depends(get_server)]
"""The server, as a parameter of a route."""


def get_policy(server: Server, name: str) -> Policy:
    """The policy with a name.

    Raises:
        NotFound: There is none, or it cannot be served; the message says why.
    """
    policy = server.store.policy(name) if re.fullmatch(NAME_PATTERN, name) else None
    if policy is not None:
        return policy
    if name in server.names.unserved_policies:
        raise NotFound(server.names.unserved_policies[name], code="not_found")
    names = ", ".join(policy.name for policy in server.store.policies())
    remedy = "`art-langgraph policies create NAME` creates one"
    raise NotFound(f"there is no policy {name!r}; there are: {names or 'none'}. {remedy}", code="not_found")


def get_version(server: Server, name: str, number: int) -> Version:
    """A version of a policy.

    Raises:
        NotFound: There is no such policy or version, or it cannot be used; the message says why.
    """
    policy = get_policy(server, name)
    version = server.store.version(name, number) if 0 <= number < MAX_VERSION else None
    if version is None:
        why = None
        if number in server.store.versions(name):
            why = f"{name}@{number} cannot be used: {server.store.problem(name, number)}"
        why = why or server.store.quarantine_reasons(name).get(number)
        why = why or f"policy {name!r} has no version {number}; its newest is {policy.latest}"
        raise NotFound(why, code="not_found")
    return version.model_copy(update={"loaded": server.slots.holds((name, number))})


def find_policy(server: ServerDep, name: str) -> Policy:
    """The policy that a path names."""
    return get_policy(server, name)


def find_version(server: ServerDep, name: str, number: int) -> Version:
    """The version that a path names."""
    return get_version(server, name, number)


PolicyDep = Annotated[Policy, Depends(find_policy)]
"""The policy that a path names, as a parameter of a route. Its files are read on a thread."""
VersionDep = Annotated[Version, Depends(find_version)]
"""The version that a path names, as a parameter of a route. Its files are read on a thread."""


def refuse_promoted(server: Server, name: str, after: int | None) -> None:
    """Raises Conflict where a request expects `after` promotions of a policy, and there were others; None: any."""
    if after is not None and (count := server.store.promotions(name)) != after:
        version = server.store.promoted_version(name)
        means = "its newest version" if version is None else f"{name}@{version}"
        message = (
            f"{name!r} was promoted meanwhile ({count} promotions, not {after}), and means {means}: nothing is changed"
        )
        raise Conflict(message, code="promoted_meanwhile", param="after")


def refuse_unserved(server: Server, name: str) -> None:
    """Raises Conflict for a policy that this server does not serve; the message says why."""
    if why := server.names.unserved_policies.get(name):
        raise Conflict(why, code="policy_unserved", param="name")
