"""Completion ids survive every way of asking, with ChatART and with plain ChatOpenAI."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import ConfigurableField
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from art_langgraph import ARTError, ChatART, TrainerClient
from art_langgraph.capture.answer import completion_id
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.wire import ConfigError

Model = Callable[[], ChatOpenAI]


@pytest.fixture(params=["ChatART", "ChatOpenAI"])
def model(request: pytest.FixtureRequest, connected: TrainerServer) -> ChatOpenAI:
    if request.param == "ChatART":
        return ChatART(policy="agent", max_tokens=50)
    # Outside a rollout, models of an address share connections of langchain-openai's, which belong to one event loop.
    http = httpx.AsyncClient()
    return ChatOpenAI(
        model="agent", base_url=f"{connected.url}/v1", api_key=TOKEN, max_tokens=50, http_async_client=http
    )


async def tokens_of(message: BaseMessage) -> str:
    one = completion_id(message)
    assert one is not None
    async with TrainerClient() as trainer:
        return "".join(map(chr, (await trainer.completion(one)).token_ids))


async def test_invoke(model: ChatOpenAI) -> None:
    assert await tokens_of(await asyncio.to_thread(model.invoke, "say one")) == "one"


async def test_ainvoke(model: ChatOpenAI) -> None:
    assert await tokens_of(await model.ainvoke("say two")) == "two"


async def test_stream(model: ChatOpenAI) -> None:
    def whole() -> BaseMessage:
        first, *rest = model.stream("say three")
        for chunk in rest:
            first = first + chunk
        return first

    message = await asyncio.to_thread(whole)
    assert message.text == "three"
    assert await tokens_of(message) == "three"


async def test_astream(model: ChatOpenAI) -> None:
    whole = None
    async for chunk in model.astream("say four"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert await tokens_of(whole) == "four"


@pytest.mark.parametrize("streaming", [False, True])
async def test_reasoning_is_kept_and_trained(connected: TrainerServer, streaming: bool) -> None:
    model = ChatART(policy="agent", max_tokens=50, streaming=streaming)
    message = await model.ainvoke("think hm, |two")
    assert isinstance(message, AIMessage)
    assert message.text == "two"
    assert message.additional_kwargs["reasoning_content"] == "hm, "
    assert await tokens_of(message) == "hm, two"


async def test_bound_tools(model: ChatOpenAI) -> None:
    def add(a: int) -> int:
        """Add."""
        return a

    message = await model.bind_tools([add]).ainvoke('call add {"a": 1}')
    assert isinstance(message, AIMessage)
    assert message.tool_calls[0]["args"] == {"a": 1}
    assert await tokens_of(message) == 'call add {"a": 1}'


async def test_structured_output(model: ChatOpenAI) -> None:
    class Answer(BaseModel):
        value: int

    found = await model.with_structured_output(Answer, include_raw=True, method="json_schema").ainvoke(
        'say {"value": 3}'
    )
    assert found["parsed"] == Answer(value=3)
    one = completion_id(found["raw"])
    async with TrainerClient() as trainer:
        assert (await trainer.completion(str(one))).constrained == ["grammar"]


def test_without_a_token_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    monkeypatch.delenv("ART_API_KEY", raising=False)
    with pytest.raises(ARTError, match="art-langgraph serve"):
        ChatART(policy="agent")
    assert ChatART(policy="agent", base_url="http://127.0.0.1:1", api_key="x").model_name == "agent"


@pytest.mark.parametrize("given", [{}, {"base_url": "http://127.0.0.1:8411"}, {"base_url": "http://127.0.0.1:8411/v1"}])
def test_a_key_that_is_a_function_goes_to_the_trainer_server(
    given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.openai.com/v1")
    monkeypatch.setenv("ART_BASE_URL", "http://127.0.0.1:8411")
    model = ChatART(policy="agent", api_key=lambda: "secret", **given)
    assert model.openai_api_base == "http://127.0.0.1:8411/v1"
    assert str(model.root_async_client.base_url) == "http://127.0.0.1:8411/v1/"
    assert str(model.root_client.base_url) == "http://127.0.0.1:8411/v1/"


def test_the_client_imports_no_torch() -> None:
    code = (
        "import sys, art_langgraph, art_mcp, art_langgraph.cli.main;"
        "print([m for m in ('torch', 'transformers', 'vllm', 'peft', 'trl', 'fastapi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("connected")
def test_model_is_another_name_of_policy() -> None:
    assert ChatART(model="agent").policy == ChatART(policy="agent").policy == "agent"
    assert ChatART(model="agent").model_name == ChatART(model="agent", policy="agent").model_name == "agent"
    with pytest.raises(ValueError, match="policy='a' and model='b'"):
        ChatART(policy="a", model="b")
    with pytest.raises(ValueError, match="ChatART needs policy"):
        ChatART()


@pytest.mark.usefixtures("connected")
async def test_the_policy_can_be_a_configurable_field() -> None:
    model = ChatART(policy="nobody", max_tokens=50).configurable_fields(policy=ConfigurableField(id="policy"))
    answer = await model.ainvoke("say two", {"configurable": {"policy": "agent"}})
    assert answer.text == "two"


@pytest.mark.usefixtures("connected")
async def test_the_name_of_chat_openai_can_be_configured_too() -> None:
    model = ChatART(policy="nobody", max_tokens=50).configurable_fields(model_name=ConfigurableField(id="model"))
    answer = await model.ainvoke("say two", {"configurable": {"model": "agent"}})
    assert answer.text == "two"
    both = {"policy": ConfigurableField(id="policy"), "model_name": ConfigurableField(id="model")}
    with pytest.raises(ConfigError, match="make policy configurable alone"):
        ChatART(policy="agent").configurable_fields(**both)
