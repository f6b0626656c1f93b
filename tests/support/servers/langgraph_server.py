"""A LangGraph server of a few routes, in this process: for faults that `langgraph dev` does not have.

It runs real graphs, whose process is captured by `install`, and speaks the protocol of `RemoteGraph` on a socket.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from langgraph.pregel.remote import RemoteGraph
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from art_langgraph import TrajectoryStore
from art_langgraph.messages import plain
from tests.support.servers.trainer_server import TrainerServer


@dataclass(slots=True)
class Remote:
    """The server, the graphs that it runs by their names, and the store of its capture."""

    url: str
    app: Starlette
    graphs: dict[str, Any]
    store: TrajectoryStore
    trainer: TrainerServer

    def graph(self, name: str) -> RemoteGraph:
        return RemoteGraph(name, url=self.url)


def make_app(graphs: Mapping[str, Any]) -> Starlette:
    """An app that runs graphs, by their names.

    `state.requests` has the bodies of requests, `state.headers` their headers, `state.cancelled` the number of runs
    that a client left early.

    A graph may raise `BrokenConnection`: the answer then ends without the end of a stream, as that of a process that is
    killed.
    """

    async def stream(request: Request) -> Response:
        body = await request.json()
        app.state.requests.append(body)
        app.state.headers.append(dict(request.headers))
        graph = graphs.get(body["assistant_id"])
        if graph is None:
            return JSONResponse({"detail": f"Assistant {body['assistant_id']} not found"}, 404)
        running = asyncio.create_task(graph.ainvoke(body["input"], _config(body)))
        return StreamingResponse(_events(running), media_type="text/event-stream")

    async def _events(running: asyncio.Task[Any]) -> AsyncIterator[str]:
        yield _event("metadata", {"run_id": str(uuid4()), "attempt": 1})
        try:
            output = await running
        except BrokenConnection as broken:
            raise RuntimeError("the connection breaks here") from broken
        except asyncio.CancelledError:
            running.cancel()
            app.state.cancelled += 1
            raise
        except Exception as error:
            yield _event("error", {"error": type(error).__name__, "message": str(error)})
        else:
            yield _event("values", plain(output))
        yield _event("end", None)

    app = Starlette(routes=[Route("/runs/stream", stream, methods=["POST"])])
    app.state.requests, app.state.headers, app.state.cancelled = [], [], 0
    return app


class BrokenConnection(Exception):
    """See `make_app`."""


def _config(body: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {**(body.get("config") or {}).get("metadata", {}), "assistant_id": "assistant-1"}}


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
