"""The type of the fixture `make`: a chat model of each kind that is captured."""

from __future__ import annotations

from typing import Any, Protocol

from langchain_openai import ChatOpenAI


class MakeModel(Protocol):
    """Makes a chat model that asks a policy."""

    def __call__(self, policy: str = "agent", **options: Any) -> ChatOpenAI: ...
