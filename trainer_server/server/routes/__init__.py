"""The HTTP API, one module for resources that belong together."""

from fastapi import APIRouter

from trainer_server.server.routes import candidates, completions, health, openai, policies, rollouts, training, versions

ROUTERS: tuple[APIRouter, ...] = (
    openai.router,
    health.router,
    policies.router,
    candidates.router,
    versions.router,
    training.router,
    training.jobs_router,
    completions.router,
    rollouts.router,
    rollouts.records_router,
    health.token_router,
)
