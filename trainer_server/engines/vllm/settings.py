"""Which vLLM engines the options of `serve` ask for."""

from __future__ import annotations

from urllib.parse import urlsplit

from trainer_server.engines.base import EngineSettings
from trainer_server.engines.vllm.engine import VLLMEngine
from trainer_server.engines.vllm.parsers import AUTO, REASONING_FLAG, TOOL_FLAG
from trainer_server.wire import ConfigError

_RESERVED = ("--host", "--port", "--uds", "--api-key", "--root-path", "--ssl-keyfile", "--ssl-certfile")
"""Flags of vLLM that would keep the server from reaching it."""


def vllm_engines(settings: EngineSettings) -> list[VLLMEngine]:
    """Makes an engine for each of `settings.urls`, or, without URLs, an engine to start for each of `settings.gpus`.

    Raises:
        ConfigError: Settings exclude each other, or a URL is invalid.
    """
    if settings.urls:
        local_options = {
            "--engine-args": settings.args,
            "--engine-gpus": settings.gpus,
            "--engine-env": settings.env,
            TOOL_FLAG: settings.tool_call_parser != AUTO,
            REASONING_FLAG: settings.reasoning_parser != AUTO,
        }
        if flag := next((flag for flag, value in local_options.items() if value), None):
            raise ConfigError(f"{flag} is for engines that are started here: give it where {settings.urls[0]} is")
        urls = [_root(url) for url in settings.urls]
        if len(set(urls)) < len(urls):
            raise ConfigError(f"--engine-url names an engine twice: {', '.join(urls)}")
        return [VLLMEngine.at(url, settings) for url in urls]
    if settings.share_gpu and settings.cpu:
        raise ConfigError("--share-gpu needs an NVIDIA GPU: on CPUs engine and trainer share main memory anyway")
    if reserved := [word for word in settings.args if word.partition("=")[0] in _RESERVED]:
        raise ConfigError(
            f"--engine-args {reserved[0]}: the server chooses where the vLLM that it starts listens, and its key. "
            "Start a vLLM of your own by `art-langgraph engine command`, and name it by --engine-url"
        )
    many = len(settings.gpus) > 1
    return [
        VLLMEngine.with_child(settings, name=f"engine-{at}" if many else "engine", gpus=gpus)
        for at, gpus in enumerate(settings.gpus or (None,))
    ]


def _root(url: str) -> str:
    if url.startswith("unix:/"):
        return url
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--engine-url {url}: it must look like http://host:8000, or unix:/path/of/socket")
    if "@" in parts.netloc:
        raise ConfigError(
            f"--engine-url has a name or a password for {parts.hostname}: give its key in ART_ENGINE_API_KEY"
        )
    return url.rstrip("/").removesuffix("/v1")
