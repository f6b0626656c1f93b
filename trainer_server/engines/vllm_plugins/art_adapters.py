"""Adapters over HTTP: vLLM fetches each version from the trainer server, where both have no directory in common.

vLLM takes this class by `--middleware art_adapters.Fetched`; this folder is on its PYTHONPATH. In its environment:

ART_ADAPTERS_FROM   the trainer server's address, as this machine sees it
ART_ADAPTERS        a directory of this machine, for the files. Several vLLMs may share it
VLLM_API_KEY        the key, which the trainer server knows (ART_ENGINE_API_KEY). ART_API_KEY takes its place, where it
                    is set: a token of scope `engine`

The directory has an adapter of each digest that the server named: `<digest>/`, or `<digest>.part/` until all of it has
arrived and has the SHA-256 that the server says. What has arrived is kept: the next try asks for the rest.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("vllm.art_adapters")

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
FILES = ("adapter_config.json", "adapter_model.safetensors")
"""The files that are written, by any answer of the server."""
NOT_FETCHED = 502
"""Status of a load whose adapter could not be fetched: the trainer server tries again, and quarantines nothing."""
_VERSION = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,62})@([0-9]{1,9})")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PART = ".part"
_IDLE = 16
"""Adapters that no vLLM of this machine holds and that stay, for one that is started again."""
_TRIES = 5
"""Requests that may end, one after another, without having brought a byte."""
_PAUSE = 0.5
"""Seconds before the second of them; twice as many before each further one."""
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)


class NotFetched(Exception):
    """An adapter cannot be had from the trainer server now; the message says why."""


@dataclass(frozen=True, slots=True)
class OpenAdapter:
    """An adapter on this machine's disk. While it is open, no vLLM of this machine deletes it."""

    path: Path
    fd: int

    def close(self) -> None:
        os.close(self.fd)


class Adapters:
    """The adapters on this machine's disk, fetched where they are missing.

    Args:
        root: Their directory.
        url: The trainer server's address.
        key: What it knows this engine by.
    """

    def __init__(self, root: Path, url: str, key: str) -> None:
        self._root, self._url = root, url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}", "Accept-Encoding": "identity"}
        self._by_proxy = urlsplit(url).hostname not in ("localhost", "127.0.0.1", "::1")
        """Whether a proxy of the environment may be asked: one knows nothing of this machine's loopback interface."""

    def get(self, policy: str, version: int) -> OpenAdapter:
        """A version's adapter, whole and with the checksums that the server names. Blocks until it is here.

        Raises:
            NotFetched: It cannot be had now.
        """
        try:
            trust: dict[str, Any] = {"verify": httpx.create_ssl_context(), "trust_env": self._by_proxy}
            with httpx.Client(headers=self._headers, timeout=_TIMEOUT, **trust) as http:
                return self._get(http, f"{self._url}/api/policies/{policy}/versions/{version}/files")
        except NotFetched as error:
            raise NotFetched(f"{policy}@{version} could not be fetched from {self._url}: {error}") from None
        except OSError as error:
            raise NotFetched(f"{policy}@{version} could not be written below {self._root}: {error}") from None

    def _get(self, http: httpx.Client, url: str) -> OpenAdapter:
        digest, files = _fetch_listing(http, url)
        final, part = self._root / digest, self._root / f"{digest}{_PART}"
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _file_lock(self._root / "lock"):
            if final.exists() and not all(_sha256(final / name) == facts["sha256"] for name, facts in files.items()):
                log.warning("%s is damaged, and is fetched again", final)
                shutil.rmtree(final)
            if not final.exists():
                part.mkdir(exist_ok=True)
                for name, facts in files.items():
                    _fetch(http, f"{url}/{name}", part / name, facts["size"], facts["sha256"])
                part.rename(final)
            os.utime(final)
            adapter = OpenAdapter(final, os.open(final, os.O_RDONLY | os.O_DIRECTORY))
            fcntl.flock(adapter.fd, fcntl.LOCK_SH)
            self._delete_idle()
        return adapter

    def _delete_idle(self) -> None:
        """Deletes what no vLLM holds, but for the newest ones."""
        adapters = [path for path in self._root.iterdir() if _DIGEST.fullmatch(path.name.removesuffix(_PART))]
        idle = [
            path for path in sorted(adapters, key=lambda path: path.stat().st_mtime, reverse=True) if _is_idle(path)
        ]
        for path in idle[_IDLE:]:
            shutil.rmtree(path, ignore_errors=True)


def _fetch_listing(http: httpx.Client, url: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """The digest of an adapter, and its files by name."""
    answer = _get_answer(http, url)
    try:
        body = answer.json()
        digest, files = body["digest"], {file["name"]: file for file in body["files"]}
        digests = [digest, *(file["sha256"] for file in files.values())]
        sizes = [file["size"] for file in files.values()]
        fine = all(type(size) is int and size >= 0 for size in sizes) and all(map(_DIGEST.fullmatch, digests))
    except (ValueError, KeyError, TypeError, RecursionError):
        fine = False
    if not fine or set(files) != set(FILES):
        raise NotFetched("it answers no list of an adapter's files: ART_ADAPTERS_FROM must name a trainer server")
    return digest, files


def _fetch(http: httpx.Client, url: str, path: Path, size: int, sha256: str) -> None:
    """Brings a file, or what is missing of it, and checks it."""
    vain = 0
    while (have := path.stat().st_size if path.exists() else 0) != size:
        if have > size:
            path.unlink()
            continue
        try:
            _fetch_rest(http, url, path, have, size, sha256)
            failure = NotFetched("the answer ended early")
        except httpx.HTTPError as error:
            failure = NotFetched(f"{error!r}")
        vain = 0 if path.exists() and path.stat().st_size > have else vain + 1
        if vain == _TRIES:
            raise failure
        if vain:
            time.sleep(_PAUSE * 2 ** (vain - 1))
    if (digest := _sha256(path)) != sha256:
        path.unlink(missing_ok=True)
        raise NotFetched(
            f"{path.name} has the SHA-256 {digest} here, and the server says {sha256}: something between the two, or "
            "this disk, changed it. It is deleted, and fetched anew at the next try"
        )


def _fetch_rest(http: httpx.Client, url: str, path: Path, have: int, size: int, sha256: str) -> None:
    """Asks once for what is missing, and appends what comes of it."""
    rest = {"Range": f"bytes={have}-", "If-Range": f'"{sha256}"'} if have else {}
    with http.stream("GET", url, headers=rest) as answer:
        if answer.status_code not in (200, 206):
            answer.read()
            raise _refusal(answer)
        begins = have if answer.headers.get("Content-Range", "").startswith(f"bytes {have}-") else 0
        with path.open("ab") as file:
            file.truncate(begins)
            for chunk in answer.iter_raw():  # as they come: what is gathered is lost in a cut
                file.write(chunk)
                if file.tell() > size:
                    raise NotFetched(f"{path.name} has more bytes than the {size} that the server says")


def _get_answer(http: httpx.Client, url: str) -> httpx.Response:
    """An answer of status 200."""
    try:
        answer = http.get(url)
    except httpx.HTTPError as error:
        by = ", and does it need the proxy of the environment (NO_PROXY)" if http.trust_env and getproxies() else ""
        raise NotFetched(f"{error!r}. Is that its address as this machine sees it{by}?") from None
    if answer.status_code != 200:
        raise _refusal(answer)
    return answer


def _refusal(answer: httpx.Response) -> NotFetched:
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = answer.text[:200]
    if answer.status_code == 401:
        message = "it does not know this engine's key: give ART_ENGINE_API_KEY the same value there and here"
    return NotFetched(f"it answered {answer.status_code}: {message}")


def _sha256(path: Path) -> str | None:
    """Of a file; None: it is not there."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_idle(path: Path) -> bool:
    """Whether no process holds an adapter."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """One process and thread of this machine at a time."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Fetched:
    """Gives vLLM a directory of this machine in place of the server's own, for each version that it is to load.

    What has another name than a version's passes as it is.

    Args:
        app: vLLM's application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        key = os.environ.get("ART_API_KEY") or os.environ["VLLM_API_KEY"]
        self._adapters = Adapters(Path(os.environ["ART_ADAPTERS"]), os.environ["ART_ADAPTERS_FROM"], key)
        self._open_adapters: dict[str, OpenAdapter] = {}
        """By name: the adapters that vLLM may read again at any time, because it has loaded them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in (LOAD, UNLOAD):
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        name = _name(body)
        if scope["path"] == UNLOAD:
            if await self._forward(scope, body, send) in (200, 404) and name in self._open_adapters:
                self._open_adapters.pop(name).close()
            return
        if (version := _VERSION.fullmatch(name)) is None:
            await self._forward(scope, body, send)
            return
        try:
            adapter = await asyncio.to_thread(self._adapters.get, version[1], int(version[2]))
        except NotFetched as error:
            log.error("%s", error)
            answer = {"error": {"message": str(error), "type": "AdapterNotFetched", "code": NOT_FETCHED}}
            await JSONResponse(answer, NOT_FETCHED)(scope, receive, send)
            return
        here = json.dumps({**json.loads(body), "lora_path": str(adapter.path)}).encode()
        success = await self._forward(scope, here, send) == 200
        surplus = self._open_adapters.get(name) if success else adapter
        if success:
            self._open_adapters[name] = adapter
        if surplus:
            surplus.close()

    async def _forward(self, scope: Scope, body: bytes, send: Send) -> int:
        """Gives vLLM a request. Returns the status of its answer."""
        status = 0

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def note_and_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        others = [(key, value) for key, value in scope["headers"] if key != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        await self._app({**scope, "headers": [*others, length]}, receive, note_and_send)
        return status


async def _body(receive: Receive) -> bytes:
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body


def _name(body: bytes) -> str:
    """The adapter that a request is about; empty: the request names none."""
    try:
        return str(json.loads(body)["lora_name"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
