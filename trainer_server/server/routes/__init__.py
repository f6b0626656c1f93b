"""The HTTP API, one module a resource."""

from fastapi import APIRouter

from trainer_server.server.routes import (
    candidates,
    completions,
    health,
    jobs,
    metrics,
    openai,
    policies,
    records,
    rollouts,
    tokens,
    training,
    versions,
)

ROUTERS: tuple[APIRouter, ...] = (
    openai.router,
    health.router,
    metrics.router,
    policies.router,
    candidates.router,
    versions.router,
    training.router,
    jobs.router,
    completions.router,
    rollouts.router,
    records.router,
    tokens.router,
)
