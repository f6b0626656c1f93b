"""`/v1`: OpenAI's chat completions, responses, completions and models, and Anthropic's messages."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from trainer_server.gateway.client_api import CHAT
from trainer_server.gateway.completions import COMPLETIONS
from trainer_server.gateway.messages.request import MESSAGES
from trainer_server.gateway.responses.request import RESPONSES
from trainer_server.server.dependencies import ServerDep

router = APIRouter(prefix="/v1", tags=["completions"])


@router.post("/chat/completions")
async def chat(request: Request, server: ServerDep) -> Response:
    """OpenAI's chat completions, streaming and not."""
    return await server.gateway.answer(request, CHAT)


@router.post("/responses")
async def responses(request: Request, server: ServerDep) -> Response:
    """OpenAI's responses, streaming and not."""
    return await server.gateway.answer(request, RESPONSES)


@router.post("/messages")
async def messages(request: Request, server: ServerDep) -> Response:
    """Anthropic's messages, streaming and not."""
    return await server.gateway.answer(request, MESSAGES)


@router.post("/messages/count_tokens")
async def count_tokens(request: Request, server: ServerDep) -> dict[str, int]:
    """The number of tokens of a prompt in Anthropic's form, as the model's chat template renders it."""
    return {"input_tokens": await server.gateway.count(request, MESSAGES)}


@router.post("/completions")
async def completions(request: Request, server: ServerDep) -> Response:
    """OpenAI's text completions, streaming and not."""
    return await server.gateway.answer(request, COMPLETIONS)


@router.get("/models")
def models(server: ServerDep) -> dict[str, object]:  # not async: it reads files, on a thread
    """The base model, the policies, and their versions."""
    return server.gateway.models()
