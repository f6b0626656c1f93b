"""Which model is asked, where, and with which key."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import httpx

from trainer_server.wire import ConfigError, Connection, LLMError


@dataclass(frozen=True, slots=True)
class Target:
    """What litellm is told. own: our own server, which bills nobody. fixed: the model never changes
    under this name, so that its answers can be kept."""

    model: str
    base_url: str | None
    api_key: str | None
    own: bool = False
    fixed: bool = True


async def find_target(model: str, base_url: str | None, api_key: str | None) -> Target:
    """What the arguments of `LLM` stand for. Raises ConfigError for an unknown provider, LLMError for a server that
    cannot say what its base model is."""
    provider, _, name = model.partition("/")
    if provider == "art":
        server = Connection.find(base_url, api_key)
        fixed = name == "base" or "@" in name or "/" in name  # a policy's name has neither
        if name == "base":
            name = await _base_model(server)
        return Target(f"openai/{name}", f"{server.url}/v1", server.api_key, own=True, fixed=fixed)
    litellm = await load_litellm()
    if base_url:
        known = provider in litellm.provider_list
        return Target(model if known else f"openai/{model}", base_url, api_key or "none")
    try:
        litellm.get_llm_provider(model)
    except litellm.BadRequestError:
        raise ConfigError(
            f"no provider is known for the model {model!r}: write it as provider/name, such as "
            "openai/gpt-4o-mini, or name an OpenAI-compatible endpoint with base_url=…"
        ) from None
    return Target(model, None, api_key)


async def load_litellm() -> Any:
    """litellm, imported when it is first needed: that takes seconds. Left alone it fetches a price list, and chats."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_LOG", "ERROR")

    def load() -> Any:
        import litellm

        import_module("openai.resources.chat")  # or the first call would, on the event loop
        litellm.suppress_debug_info = True
        return litellm

    return await asyncio.to_thread(load)


async def _base_model(server: Connection) -> str:
    """The name of the base model of our server: the first that it lists. Raises LLMError."""
    headers = {"Authorization": f"Bearer {server.api_key}"}
    try:
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=10.0) as http:
            answer = (await http.get("/v1/models")).raise_for_status()
    except httpx.HTTPError as error:
        raise LLMError(f"art/base: {error!r}. Is the trainer server up at {server.url}?", kind="unreachable") from None
    return str(answer.json()["data"][0]["id"])
