"""The routes of the dashboard, one module a page or a few of one kind. The server mounts ROUTERS and Sessions."""

from fastapi import APIRouter

from trainer_server.dashboard.sessions import Sessions
from trainer_server.dashboard.views import api, compare, events, login, overview, runs

ROUTERS: tuple[APIRouter, ...] = (
    api.router,
    login.router,
    overview.router,
    events.router,
    compare.router,
    runs.router,
)

__all__ = ["ROUTERS", "Sessions"]
