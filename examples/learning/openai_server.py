"""A function that is served as a chat completions API, for programs that ask a model over HTTP and in no other way."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from art_examples.learning.baselines import complete
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Body = dict[str, Any]
"""A request, or its answer, as OpenAI's API has it."""


@asynccontextmanager
async def openai_server(answer: Callable[[Body], Awaitable[Body]]) -> AsyncIterator[str]:
    """Serves a function on this machine until the block is left. Yields the base URL.

    Args:
        answer: Gives the completion for a request. What it raises is the message of an answer with status 500.
    """

    async def chat(request: Request) -> Response:
        body = await request.json()
        try:
            said = await answer(body)
        except Exception as error:  # at the edge of a request: told to the client
            return JSONResponse({"error": {"message": f"{type(error).__name__}: {error}"}}, status_code=500)
        return Response(_events(said), media_type="text/event-stream") if body.get("stream") else JSONResponse(said)

    secret = secrets.token_urlsafe(16)  # so that no other program of this machine asks for completions
    app = Starlette(routes=[Route(f"/{secret}/v1/chat/completions", chat, methods=["POST"])])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/{secret}/v1"
        finally:
            server.should_exit = True
            await serving


@asynccontextmanager
async def litellm_server(model: str) -> AsyncIterator[str]:
    """Serves a model that litellm knows, at temperature 0. Yields the base URL. model: its name."""

    async def answer(body: Body) -> Body:
        response = await complete(model, body["messages"], **{name: body[name] for name in ("tools",) if name in body})
        made: Body = response.model_dump(exclude_none=True)
        return made

    async with openai_server(answer) as url:
        yield url


def completion(model: str, text: str) -> Body:
    """A completion that says a text."""
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _events(said: Body) -> str:
    """A completion as a stream of a single chunk."""
    choices = []
    for choice in said["choices"]:
        calls = [{**call, "index": at} for at, call in enumerate(choice["message"].get("tool_calls") or ())]
        delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
        choices.append({"index": choice["index"], "delta": delta, "finish_reason": choice["finish_reason"]})
    chunk = {**said, "object": "chat.completion.chunk", "choices": choices}
    return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
