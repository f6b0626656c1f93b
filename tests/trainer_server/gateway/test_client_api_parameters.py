"""Parameters of client APIs: each that the SDKs have is decided on; what cannot be translated is refused by name."""

from __future__ import annotations

import inspect
from typing import Any

import anthropic
import pytest
from anthropic.types import message_create_params as anthropic_sdk
from openai.types import completion_create_params as text_sdk
from openai.types.responses import response_create_params as responses_sdk

from trainer_server.gateway.client_api import ClientAPI
from trainer_server.gateway.completions import COMPLETIONS
from trainer_server.gateway.completions import PARAMETERS as COMPLETIONS_PARAMETERS
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.messages.request import MESSAGES
from trainer_server.gateway.messages.request import PARAMETERS as MESSAGES_PARAMETERS
from trainer_server.gateway.parameters import Handling
from trainer_server.gateway.parser import ChatRequest, chat_request
from trainer_server.gateway.responses.request import PARAMETERS as RESPONSES_PARAMETERS
from trainer_server.gateway.responses.request import RESPONSES
from trainer_server.gateway.sampler import engine_request

NEEDED: dict[ClientAPI, dict[str, Any]] = {
    RESPONSES: {"model": "agent", "input": "hi"},
    MESSAGES: {"model": "agent", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "agent", "prompt": "hi"},
}
HTTP = {"self", "extra_headers", "extra_query", "extra_body", "timeout", "betas"}
"""Arguments of the SDKs' methods that are no parameters."""
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}}


def chat_of(dialect: ClientAPI, **body: Any) -> ChatRequest:
    whole = {**NEEDED[dialect], **body}
    dialect.continues(whole)
    return chat_request(dialect.read(whole, None), max_tokens=5)


def named(*kinds: type) -> set[str]:
    return {name for kind in kinds for name in inspect.get_annotations(kind)}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            named(
                responses_sdk.ResponseCreateParamsBase,
                responses_sdk.ResponseCreateParamsNonStreaming,
                responses_sdk.ResponseCreateParamsStreaming,
            ),
            RESPONSES_PARAMETERS,
        ),
        (
            named(
                anthropic_sdk.MessageCreateParamsBase,
                anthropic_sdk.MessageCreateParamsNonStreaming,
                anthropic_sdk.MessageCreateParamsStreaming,
            )
            | set(inspect.signature(anthropic.Anthropic(api_key="").messages.create).parameters) - HTTP,
            MESSAGES_PARAMETERS,
        ),
        (
            named(
                text_sdk.CompletionCreateParamsBase,
                text_sdk.CompletionCreateParamsNonStreaming,
                text_sdk.CompletionCreateParamsStreaming,
            ),
            COMPLETIONS_PARAMETERS,
        ),
    ],
    ids=["responses", "messages", "completions"],
)
def test_every_parameter_of_the_sdk_is_decided_on(theirs: set[str], ours: dict[str, Handling]) -> None:
    """Fails when an SDK has a new one: decide whether it changes the answer, and add it to the table."""
    assert len(theirs) > 10
    assert theirs - set(ours) == set()


@pytest.mark.parametrize(
    ("dialect", "body", "words"),
    [
        (RESPONSES, {"background": True}, "wait for the answer"),
        (RESPONSES, {"conversation": "conv_1"}, "no conversations are kept"),
        (RESPONSES, {"context_management": [{"type": "compaction"}]}, "shorten it in the agent"),
        (RESPONSES, {"moderation": {"model": "m"}}, "moderate inputs"),
        (RESPONSES, {"prompt": {"id": "pmpt_1"}}, "no prompt templates"),
        (RESPONSES, {"truncation": "auto"}, "nothing is cut"),
        (RESPONSES, {"include": ["web_search_call.results"]}, "'web_search_call.results' is not offered"),
        (RESPONSES, {"frobnicate": 1}, "unknown parameter: 'frobnicate'"),
        (RESPONSES, {"input": None}, "`input`: is missing"),
        (RESPONSES, {"previous_response_id": "resp_of_openai"}, "is no answer of this server"),
        (RESPONSES, {"text": {"shape": 1}}, "`text.shape`"),
        *(
            (RESPONSES, {"tools": [{"type": kind}]}, f"runs no tool of type '{kind}'")
            for kind in ("web_search", "file_search", "computer_use_preview", "code_interpreter", "mcp", "custom",
                         "image_generation", "local_shell", "namespace")
        ),
        (RESPONSES, {"tools": [{**TOOL, "defer_loading": True}]}, "no tools are searched"),
        (RESPONSES, {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "only the tools that may be called"),
        (RESPONSES, {"max_output_tokens": 0}, "`max_output_tokens` should be greater"),
        (RESPONSES, {"temperature": 11}, "`temperature`"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}, "send the item itself"),
        (RESPONSES, {"input": [{"type": "computer_call", "id": "1"}]}, "`input.0.type`: 'computer_call'"),
        (RESPONSES, {"input": [{"role": "tool", "content": "x"}]}, "`input.0.role`"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "no files"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_video"}]}]}, "'input_video' is not"),
        (RESPONSES, {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "no model here can"),
        (RESPONSES, {"input": [{"type": "function_call", "name": "add", "arguments": "{}"}]}, "`input.0.call_id`"),
        (MESSAGES, {"container": "c"}, "runs no code"),
        (MESSAGES, {"mcp_servers": [{"url": "u"}]}, "give the agent their tools"),
        (MESSAGES, {"context_management": {"edits": [1]}}, "shorten it in the agent"),
        (MESSAGES, {"n": 2}, "unknown parameter: 'n'"),
        (MESSAGES, {"messages": []}, "`messages` should have a value"),
        (MESSAGES, {"stop_sequences": [""]}, "`stop_sequences`"),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "is a tool of Anthropic's"),
        (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "is a tool of Anthropic's"),
        (MESSAGES, {"tools": [{"name": "add"}]}, "`tools.0.input_schema`"),
        (MESSAGES, {"tool_choice": {"type": "some"}, "tools": [{"name": "a", "input_schema": {}}]}, "any, tool or"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "'document'"),
        (MESSAGES, {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking"}]}]}, "'redacted_"),
        (MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, "must be user, assistant or system"),
        (COMPLETIONS, {"suffix": "x"}, "a suffix is not offered"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "2 prompts: send one request for each"),
        (COMPLETIONS, {"prompt": []}, "must be a text, or a list of token ids"),
        (COMPLETIONS, {"prompt": [1, -1]}, "must be a text, or a list of token ids"),
        (COMPLETIONS, {"best_of": 3}, "send `n`, and choose"),
        (COMPLETIONS, {"echo": True, "logprobs": 1}, "leave `echo` or `logprobs` out"),
        (COMPLETIONS, {"echo": True, "prompt": [1]}, "decode them in the client"),
        (COMPLETIONS, {"logprobs": 21}, "from 0 to 20"),
        (COMPLETIONS, {"messages": [{"role": "user", "content": "x"}]}, "unknown parameter: 'messages'"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_refused_by_name(dialect: ClientAPI, body: dict[str, Any], words: str) -> None:
    with pytest.raises(APIError) as refused:
        chat_of(dialect, **body)
    assert refused.value.status == 400
    assert words in refused.value.message


def test_what_changes_nothing_is_dropped_and_noted() -> None:
    dropped = {
        "max_tool_calls": 3, "metadata": {"a": "b"}, "prompt_cache_key": "k", "prompt_cache_options": {"mode": "x"},
        "prompt_cache_retention": "24h", "safety_identifier": "u", "service_tier": "auto", "store": True, "user": "u",
        "stream_options": {"include_obfuscation": False}, "image": {"context_compression": "auto"},
        "access_programs": {"cyber": "standard"},
    }  # fmt: skip
    also = {"include": ["reasoning.encrypted_content"], "text": {"verbosity": "low"}, "background": False}
    exchange = RESPONSES.read({**NEEDED[RESPONSES], **dropped, **also}, None)
    assert exchange.dropped_names == sorted([*dropped, "include.reasoning.encrypted_content", "text.verbosity"])
    assert set(exchange.chat) == {"model", "messages", "response_format"}
    listed = {name for name, handling in RESPONSES_PARAMETERS.items() if handling == Handling.drop}
    assert listed == set(dropped)

    dropped = {
        "cache_control": {"type": "ephemeral"}, "metadata": {"user_id": "u"}, "service_tier": "auto", "speed": "fast",
        "diagnostics": {}, "inference_geo": "us", "user_profile_id": "u", "workspace_id": "w",
    }  # fmt: skip
    block = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    tool = {"name": "add", "input_schema": {}, "input_examples": [{}]}
    body = {"system": [block], "tools": [tool], "thinking": {"type": "enabled", "budget_tokens": 1024}, **dropped}
    exchange = MESSAGES.read({**NEEDED[MESSAGES], **body}, None)
    assert exchange.dropped_names == sorted([*dropped, "tools.input_examples", "thinking.budget_tokens"])
    assert exchange.chat["chat_template_kwargs"] == {"enable_thinking": True}
    listed = {name for name, handling in MESSAGES_PARAMETERS.items() if handling == Handling.drop}
    assert listed == set(dropped)


def test_parameters_become_those_of_a_chat_request() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = chat_of(
        RESPONSES,
        instructions="Be brief.",
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        reasoning={"effort": "low"},
        tools=[{**TOOL, "description": "Adds.", "strict": True}],
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    upstream = engine_request(asked, "agent@1")
    assert asked.body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}
    assert upstream["tools"] == [{"type": "function", "function": function}]
    assert upstream["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert upstream["response_format"]["json_schema"] == {"name": "n", "schema": schema, "strict": True}
    wanted = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "reasoning_effort": "low"}
    assert wanted.items() <= upstream.items()
    assert (upstream["parallel_tool_calls"], upstream["top_logprobs"]) == (False, 2)

    asked = chat_of(
        MESSAGES,
        system="Be brief.",
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        stop_sequences=["END"],
        tools=[{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}, "strict": True}],
        tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True},
        thinking={"type": "disabled"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": schema}},
    )
    upstream = engine_request(asked, "agent@1")
    assert asked.body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert upstream["tools"] == [{"type": "function", "function": function}]
    assert upstream["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert upstream["response_format"]["json_schema"]["schema"] == schema
    wanted = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop": ["END"], "reasoning_effort": "low"}
    assert wanted.items() <= upstream.items()
    assert (upstream["parallel_tool_calls"], upstream["chat_template_kwargs"]) == (False, {"enable_thinking": False})
