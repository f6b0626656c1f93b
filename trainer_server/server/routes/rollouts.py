"""`/api/rollouts`: what rollouts asked for, and rollouts that give up the policy version that they keep (a lease)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body

from trainer_server.server.dependencies import ServerDep
from trainer_server.wire import RolloutCalls

router = APIRouter(prefix="/api/rollouts", tags=["rollouts"])


@router.get("/{rollout}")
async def show_calls(rollout: str, server: ServerDep) -> RolloutCalls:
    """The versions and temperatures that a rollout asked for. No calls: it is unknown, or its last call is long ago."""
    return server.gateway.rollouts.calls(rollout)


@router.delete("/{rollout}", status_code=204)
async def release(rollout: str, server: ServerDep) -> None:
    """Ends a rollout's lease on its policy version, and forgets the records of its remote graphs. An unknown id is
    fine: its lease may have expired."""
    await release_all({rollout}, server)


@router.post("/release", status_code=204)
async def release_all(rollouts: Annotated[set[str], Body()], server: ServerDep) -> None:
    """The same for many rollouts."""
    server.leases.release(rollouts)
    server.records.drop(rollouts)
