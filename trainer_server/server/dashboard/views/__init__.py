"""The routes of the dashboard, one module a page or a few of one kind."""

from fastapi import APIRouter

from trainer_server.server.dashboard.views import compare, events, login, overview, run, runs

ROUTERS: tuple[APIRouter, ...] = (
    login.router,
    overview.router,
    events.router,
    runs.router,
    compare.router,
    run.router,
)
