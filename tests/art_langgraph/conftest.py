"""A chat model of each kind that is captured, and a trajectory store in each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_openai import ChatOpenAI

from art_langgraph import ChatART
from tests.support.runs.chat_models import MakeModel
from tests.support.servers.postgres import DATABASES, PostgresServer, postgres_server
from tests.support.servers.trainer_server import TOKEN, TrainerServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server."""
    with postgres_server() as running:
        yield running


@pytest.fixture(params=DATABASES)
def store_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What a new trajectory store is opened by: a file, and an address."""
    if request.param == "sqlite":
        return str(tmp_path / "s.sqlite")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture(params=["ChatART", "ChatOpenAI"])
def make(request: pytest.FixtureRequest, connected: TrainerServer) -> MakeModel:
    """Makes ChatART, or a plain ChatOpenAI that points at the gateway."""

    def chat(policy: str = "agent", **options: Any) -> ChatOpenAI:
        options = {"max_tokens": 60, **options}
        if request.param == "ChatART":
            return ChatART(policy=policy, **options)
        return ChatOpenAI(
            model=policy, base_url=f"{connected.url}/v1", api_key=TOKEN, http_async_client=client, **options
        )

    client = httpx.AsyncClient(timeout=60)  # the one that LangChain shares would meet another test's event loop
    return chat
