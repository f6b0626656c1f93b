"""The form of a layer around the application: it looks at HTTP requests, and may refuse them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from starlette.types import ASGIApp, Receive, Scope, Send

from trainer_server.gateway.errors import APIError


class Layer(ABC):
    """A layer around the application. Plain ASGI: streams and disconnects pass through untouched.

    What is no HTTP request passes by. An APIError that `handle` raises is the answer, in the shape of the API that was
    asked.

    Args:
        app: The application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            await self.handle(scope, receive, send)
        except APIError as refusal:
            await refusal.response(scope["path"])(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, by `self.app` or by itself.

        Raises:
            APIError: The request is refused. Nothing of an answer has been sent.
        """
