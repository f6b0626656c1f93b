"""Baselines: demonstrations in the prompts of the policy, and of any model that litellm knows."""

from __future__ import annotations

import pytest
from art_examples.learning.baselines import LiteLLMChat, PromptedChatART, with_demonstrations
from art_examples.learning.task import chat
from langchain_core.messages import HumanMessage, SystemMessage, convert_to_openai_messages
from langchain_core.tools import tool

from tests.support.servers.judge_app import endpoint
from tests.support.servers.trainer_server import TrainerServer

SHOWN = [chat("Add.", "1 + 1", "2"), chat("Negate.", "1", "-1"), chat("Add.", "2 + 2", "5", "No.", "4")]
SHOWN[2].messages[2]["weight"] = 0
PROMPT = [SystemMessage("Add."), HumanMessage("say 3 + 3")]
WHOLE = [
    {"role": "system", "content": "Add."},
    {"role": "user", "content": "1 + 1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2 + 2"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "No."},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "say 3 + 3"},
]


def test_demonstrations_of_the_same_role_come_behind_the_system_message() -> None:
    assert convert_to_openai_messages(with_demonstrations(PROMPT, SHOWN, 2)) == WHOLE
    assert convert_to_openai_messages(with_demonstrations(PROMPT, SHOWN, 1)) == [*WHOLE[:3], WHOLE[-1]]


async def test_a_prompted_policy_sends_them(connected: TrainerServer) -> None:
    model = PromptedChatART(policy="agent", demonstrations=SHOWN, shots=2, max_tokens=8)
    assert (await model.ainvoke(PROMPT)).text == "3 + 3"
    sent = connected.engine["requests"][-1]["messages"]
    assert [(message["role"], message["content"]) for message in sent] == [
        (message["role"], message["content"]) for message in WHOLE
    ]


async def test_a_model_of_litellm_is_asked_over_its_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint("6") as fake:
        monkeypatch.setenv("OPENAI_API_BASE", fake.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        model = LiteLLMChat(model="openai/some-model", demonstrations=SHOWN, shots=2)
        assert (await model.ainvoke(PROMPT)).text == "6"
    (request,) = fake.requests
    assert request["messages"] == WHOLE
    assert (request["model"], request["temperature"]) == ("some-model", 0.0)
    assert fake.keys == ["a-key"]
    assert model.usd is None  # litellm knows no price of it
    with pytest.raises(NotImplementedError, match="ainvoke"):
        model.invoke(PROMPT)


@tool
def price(thing: str) -> str:
    """Price of a thing."""
    return f"{thing}: 5 euros"


async def test_a_model_of_litellm_calls_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    forced = {"type": "function", "function": {"name": "price"}}
    with endpoint('{"thing": "lamp"}') as fake:
        monkeypatch.setenv("OPENAI_API_BASE", fake.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        model = LiteLLMChat(model="openai/some-model", demonstrations=SHOWN, shots=2)
        said = await model.bind_tools([price], tool_choice=forced).ainvoke(PROMPT)
    assert fake.requests[0]["tools"][0]["function"]["name"] == "price"
    assert [(call["name"], call["args"]) for call in said.tool_calls] == [("price", {"thing": "lamp"})]
    assert said.usage_metadata is not None
    assert (said.usage_metadata["input_tokens"], said.usage_metadata["output_tokens"]) == (100, 20)
