"""`/v1`: OpenAI's chat completions and models."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from trainer_server.server.dependencies import ServerDep

router = APIRouter(prefix="/v1", tags=["openai"])


@router.post("/chat/completions")
async def chat(request: Request, server: ServerDep) -> Response:
    """OpenAI's chat completions, streaming and not."""
    return await server.gateway.chat(request)


@router.get("/models")
def models(server: ServerDep) -> dict[str, object]:  # not async: it reads files, on a thread
    """The base model, the policies, and their versions."""
    return server.gateway.models()
