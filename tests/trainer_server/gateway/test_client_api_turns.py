"""What the model said, and a client sends back, is the assistant message that a chat client would have sent.

litellm translates the same APIs for many providers; where it keeps everything, its messages are ours.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.homes.ledger_rows import row
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.messages.request import MESSAGES
from trainer_server.gateway.responses.request import RESPONSES

A, B = "a" * 32, "b" * 32
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
    {"id": "c2", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
]
TURN = {"role": "assistant", "content": "Let me see.", "reasoning": "Two sums.", "tool_calls": CALLS}
RESULTS = [
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
]
CONVERSATION = [{"role": "user", "content": "Add."}, TURN, *RESULTS, {"role": "user", "content": "Thanks."}]


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **more}


def called(call: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call["id"], **call["function"], **more}


def messages_of(items: list[dict[str, Any]], **body: Any) -> list[dict[str, Any]]:
    return list(RESPONSES.read({"model": "agent", "input": items, **body}, None).chat["messages"])


def blocks_of(messages: list[dict[str, Any]], **body: Any) -> list[dict[str, Any]]:
    return list(MESSAGES.read({"model": "agent", "messages": messages, **body}, None).chat["messages"])


ITEMS = [
    {"role": "user", "content": "Add."},
    thought("Two sums."),
    said("Let me see."),
    called(CALLS[0]),
    called(CALLS[1]),
    {"type": "function_call_output", "call_id": "c1", "output": "one"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
    {"role": "user", "content": [{"type": "input_text", "text": "Thanks."}]},
]
BLOCKS = [
    {"role": "user", "content": "Add."},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Two sums.", "signature": ""},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
            {"type": "tool_use", "id": "c2", "name": "add", "input": {"a": 2}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
            {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "two"}]},
            {"type": "text", "text": "Thanks."},
        ],
    },
]


def test_a_turn_of_several_items_or_blocks_is_one_message() -> None:
    assert messages_of(ITEMS) == CONVERSATION
    assert blocks_of(BLOCKS) == CONVERSATION


@pytest.mark.slow  # its import takes seconds
def test_litellm_reads_the_same_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls the reasoning `reasoning_content`, and leaves a list with a single text a list."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it fetches a table of prices otherwise
    from litellm.llms.anthropic.messages.adapters.transformation import LiteLLMAnthropicMessagesAdapter
    from litellm.responses.litellm_completion_transformation.transformation import LiteLLMCompletionResponsesConfig

    def plain(message: Any) -> dict[str, Any]:
        given = dict(message)
        parts = given.get("content")
        texts = [part["text"] for part in parts] if isinstance(parts, list) else [parts]
        calls = [
            (call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in given.get("tool_calls") or []
        ]
        thoughts = given.get("reasoning") or given.get("reasoning_content")
        return {"role": given["role"], "texts": texts, "calls": calls, "thoughts": thoughts,
                "tool_call_id": given.get("tool_call_id")}  # fmt: skip

    ours = [plain(message) for message in CONVERSATION]
    theirs = LiteLLMCompletionResponsesConfig.transform_responses_api_input_to_messages(
        input=ITEMS, responses_api_request={}, replay_reasoning=True
    )
    assert [plain(message) for message in theirs] == ours
    theirs = LiteLLMAnthropicMessagesAdapter().translate_anthropic_messages_to_openai(BLOCKS)
    assert [plain(message) for message in theirs] == ours


def test_turns_that_follow_one_another_are_kept_apart_by_their_ids() -> None:
    first, second = said("One.", id=f"msg_{A}"), said("Two.", id=f"msg_{B}")
    assert messages_of([first, second]) == [
        {"role": "assistant", "content": "One."},
        {"role": "assistant", "content": "Two."},
    ]
    both = messages_of(
        [thought("Hm.", id=f"rs_{A}"), first, called(CALLS[0], id=f"fc_{A}_0"), thought("So.", id=f"rs_{B}")]
    )
    assert [message["content"] for message in both] == ["One.", None]
    assert [message["reasoning"] for message in both] == ["Hm.", "So."]
    assert both[0]["tool_calls"] == CALLS[:1]


def test_turns_without_ids_are_kept_apart_where_a_text_follows_a_text() -> None:
    assert [message["content"] for message in messages_of([said("One."), said("Two.")])] == ["One.", "Two."]
    assert len(messages_of([called(CALLS[0]), said("Two.")])) == 2
    assert len(messages_of([said("One."), called(CALLS[0]), called(CALLS[1])])) == 1


def test_text_after_a_call_of_the_same_turn_joins_its_text() -> None:
    parts = [said("One, ", id=f"msg_{A}"), called(CALLS[0], id=f"fc_{A}_0"), said("two.", id=f"msg_{A}_1")]
    (message,) = messages_of(parts)
    assert message == {"role": "assistant", "content": "One, two.", "tool_calls": CALLS[:1]}


def test_developer_messages_are_system_messages() -> None:
    """Templates of open models leave a role that they do not know out, without a word."""
    assert messages_of([{"role": "developer", "content": "Be brief."}])[0]["role"] == "system"
    assert blocks_of([{"role": "system", "content": "Be brief."}])[0] == {"role": "system", "content": "Be brief."}


def test_images_are_those_of_a_chat_request() -> None:
    url = "data:image/png;base64,AAAA"
    wanted = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": url}]
    assert messages_of([{"role": "user", "content": parts}])[0]["content"] == wanted
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    blocks = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
    assert blocks_of([{"role": "user", "content": blocks}])[0]["content"] == wanted


def test_results_of_tools_keep_their_place_among_other_blocks() -> None:
    blocks = [
        {"type": "text", "text": "before"},
        {"type": "tool_result", "tool_use_id": "c1", "is_error": True, "content": "no"},
        {"type": "tool_result", "tool_use_id": "c2"},
        {"type": "text", "text": "after"},
    ]
    exchange = MESSAGES.read({"model": "agent", "messages": [{"role": "user", "content": blocks}]}, None)
    assert [(message["role"], message["content"]) for message in exchange.chat["messages"]] == [
        ("user", "before"), ("tool", "no"), ("tool", ""), ("user", "after"),
    ]  # fmt: skip
    assert exchange.dropped_names == ["tool_result.is_error"]


def test_a_model_goes_on_with_its_own_last_message() -> None:
    body = {"model": "agent", "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "It is"}]}
    chat = MESSAGES.read(body, None).chat
    assert (chat["continue_final_message"], chat["add_generation_prompt"]) == (True, False)


@pytest.mark.parametrize("text", ["Grüße — 你好", '"quoted"\n'])
def test_arguments_of_calls_keep_their_characters(text: str) -> None:
    blocks = [{"type": "tool_use", "id": "c1", "name": "say", "input": {"text": text}}]
    conversation = [{"role": "assistant", "content": blocks}, {"role": "user", "content": "?"}]
    arguments = blocks_of(conversation)[0]["tool_calls"][0]["function"]["arguments"]
    assert "\\u" not in arguments


def test_an_answer_with_half_of_a_character_is_not_gone_on_from() -> None:
    """A model may write such a text, and the ledger has it; a prompt cannot."""
    request = {"messages": [{"role": "user", "content": "hi"}]}
    message = {"role": "assistant", "content": "half \ud83d"}
    earlier = row("chatcmpl-1").model_copy(update={"request": request, "message": message})
    with pytest.raises(APIError, match="half of a character") as refused:
        RESPONSES.read({"model": "agent", "input": "go on"}, earlier)
    assert (refused.value.status, refused.value.param) == (400, "input")
