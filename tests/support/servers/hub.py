"""A hub of models over HTTP, as huggingface_hub asks it: open, gated and private models; downloads that break off."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from huggingface_hub import constants
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.servers.serving import serving

COMMITS = {"main": "a" * 40, "v1": "b" * 40}
"""By branch or tag."""
FILES = {
    "config.json": '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}',
    "model.safetensors": "weights of {}",
    "original/consolidated.00.pth": "the same weights again",
    "pytorch_model.bin": "and again",
}
GRANTED = "hf_granted"
"""The token of an account that may have the gated and the private model."""
STALE = "hf_stale"
"""A token that was revoked."""


@dataclass
class Hub:
    """A running hub, with the models `lab/open`, `lab/gated`, `lab/private` and `lab/disabled`."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    """Files that were asked for."""
    ranges: list[str] = field(default_factory=list)
    """Parts of files that were asked for."""
    tokens: set[str] = field(default_factory=set)
    """Tokens that came with requests."""
    broken: int = 0
    """Downloads of weights that break off from now on."""
    files: dict[str, str] = field(default_factory=lambda: dict(FILES))

    def refusal(self, request: Request) -> Response | None:
        """The error for an account that may not have the model; None: it may."""
        name, token = request.path_params["name"], request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.tokens.add(token)
        if token == STALE:
            return _error(401, "", "Invalid credentials in Authorization header")
        if name == "disabled":
            return _error(403, "", "Access to this resource is disabled.")
        if name not in ("open", "gated") and (name != "private" or token != GRANTED):
            return _error(404 if token == GRANTED else 401, "RepoNotFound")
        return None

    async def info(self, request: Request) -> Response:
        if refused := self.refusal(request):
            return refused
        if (sha := _commit(request)) is None:
            return _error(404, "RevisionNotFound")
        name = f"lab/{request.path_params['name']}"
        return JSONResponse({"id": name, "sha": sha, "siblings": [], "tags": [], "downloads": 0, "likes": 0})

    async def tree(self, _request: Request) -> Response:
        return JSONResponse([{"type": "file", "path": one, "size": 1, "oid": one} for one in self.files])

    async def file(self, request: Request) -> Response:
        if refused := self.refusal(request):
            return refused
        if request.path_params["name"] == "gated" and request.headers.get("Authorization") != f"Bearer {GRANTED}":
            return _error(403 if "Authorization" in request.headers else 401, "GatedRepo")
        sha, path = str(_commit(request)), request.path_params["path"]
        self.asked.append(path)
        content = self.files[path].replace("{}", sha).encode()
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": sha}
        if request.method == "GET" and path == "model.safetensors" and self.broken:
            self.broken -= 1
            return Response(content[:5], headers={**headers, "Content-Length": str(len(content))})
        if part := request.headers.get("Range"):
            self.ranges.append(part)
            start = int(part.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return Response(content[start:], 206, headers)
        return Response(content, headers=headers)


def _error(status: int, code: str, message: str = "") -> Response:
    return JSONResponse({"error": message or code}, status, {"X-Error-Code": code, "X-Error-Message": message or code})


def _commit(request: Request) -> str | None:
    revision = request.path_params["revision"]
    return COMMITS.get(revision) or (revision if revision in COMMITS.values() else None)


@contextmanager
def serving_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serves a hub that huggingface_hub finds, without a token. Downloads go below `cache`."""
    hub = Hub()
    app = Starlette(
        routes=[
            Route("/api/models/lab/{name}/revision/{revision}", hub.info),
            Route("/api/models/lab/{name}", lambda _request: _error(404, "RepoNotFound")),
            Route("/api/models/lab/{name}/tree/{revision}", hub.tree),
            Route("/lab/{name}/resolve/{revision}/{path:path}", hub.file, methods=["GET", "HEAD"]),
        ]
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with serving(app) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        hub.url = url
        yield hub
