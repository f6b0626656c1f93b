"""An OpenAI-compatible endpoint that answers by script: stands in for a paid model, and forces its faults.

Each request takes the next step of the script; the last one stays. A step is what to say (a string), a `Fault`, or a
function of the request's body that gives one of these. A forced tool is called with what would have been said.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.servers.serving import serving


@dataclass(frozen=True, slots=True)
class Fault:
    """What an endpoint may do instead of answering. sleep: seconds before it does anything."""

    status: int = 200
    message: str = ""
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    sleep: float = 0.0
    refusal: str | None = None
    finish_reason: str = "stop"
    body: bytes | None = None


Step = str | Fault | Callable[[dict[str, Any]], "str | Fault"]


@dataclass(slots=True)
class Endpoint:
    """A running endpoint: its address, what it will do, what it was asked, and how many requests were given up."""

    url: str
    script: list[Step]
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    dropped: int = 0
    most_at_once: int = 0


@contextmanager
def endpoint(*script: Step) -> Iterator[Endpoint]:
    """Serves a script on a real socket."""
    found = Endpoint("", list(script))
    busy = 0

    async def chat(request: Request) -> Response:
        nonlocal busy
        body = await request.json()
        found.requests.append(body)
        found.keys.append(request.headers.get("authorization", "").removeprefix("Bearer "))
        busy += 1
        found.most_at_once = max(found.most_at_once, busy)
        try:
            step = found.script.pop(0) if len(found.script) > 1 else found.script[0]
            return await _play(step(body) if callable(step) else step, body, request, found)
        finally:
            busy -= 1

    async def models(_request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "base", "object": "model"}]})

    routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/models", models)]
    with serving(Starlette(routes=routes)) as url:
        found.url = f"{url}/v1"
        yield found


async def _play(step: str | Fault, body: dict[str, Any], request: Request, found: Endpoint) -> Response:
    fault = Fault() if isinstance(step, str) else step
    waited = 0.0
    while waited < fault.sleep:
        if await request.is_disconnected():
            found.dropped += 1
            return Response()
        await asyncio.sleep(0.02)
        waited += 0.02
    await asyncio.sleep(0)
    if fault.body is not None:
        return Response(fault.body, fault.status, headers=dict(fault.headers), media_type="application/json")
    if fault.status != 200:
        error = {"message": fault.message, "type": "error", "code": fault.code}
        return JSONResponse({"error": error}, fault.status, headers=dict(fault.headers))
    text = step if isinstance(step, str) else fault.message
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": fault.refusal}
    forced = body.get("tool_choice")
    if isinstance(forced, dict) and not fault.refusal:
        call = {"name": forced["function"]["name"], "arguments": text}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        }
    return JSONResponse(
        {
            "id": "chatcmpl-judge", "object": "chat.completion", "created": 1, "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": fault.finish_reason}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }
    )  # fmt: skip


def scores(value: Callable[[str], float]) -> Callable[[dict[str, Any]], str]:
    """A judge that gives each candidate of the prompt the score that its text deserves."""

    def answer(body: dict[str, Any]) -> str:
        return verdict({one: value(text) for one, text in candidates(body).items()})

    return answer


def verdict(given: Mapping[int, float]) -> str:
    """A judge's answer: the score of each candidate."""
    return json.dumps({f"candidate_{one}": {"reason": "so", "score": score} for one, score in given.items()})


def candidates(body: dict[str, Any]) -> dict[int, str]:
    """The candidates that a judge's prompt shows, by id."""
    prompt = next(str(one["content"]) for one in body["messages"] if one["role"] == "user")
    prompt = re.split(r"^#\w+ end$", prompt, flags=re.MULTILINE)[0]
    parts = re.split(r"^#\w+ candidate (\d+)$", prompt, flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}
