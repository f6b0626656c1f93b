"""The plugin that guards all routes of vLLM with its key."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.engines.plugins import engine_plugin
from tests.support.servers.serving import serving


async def yes(_request: Request) -> Response:
    return Response()


@pytest.mark.parametrize("key", ["", None])
def test_without_a_key_vllm_does_not_start(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("VLLM_API_KEY", key)
    with pytest.raises(RuntimeError, match="VLLM_API_KEY is not set or empty"):
        engine_plugin("art_key")


def test_every_route_but_health_wants_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    app = Starlette(routes=[Route("/health", yes), Route("/metrics", yes)])
    app.add_middleware(engine_plugin("art_key").KeyOnly)
    with serving(app) as url, httpx.Client(base_url=url) as http:
        assert http.get("/health").status_code == 200
        for header in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Bearer secrets"}):
            assert http.get("/metrics", headers=header).status_code == 401
        assert http.get("/metrics", headers={"Authorization": "Bearer secret"}).status_code == 200
