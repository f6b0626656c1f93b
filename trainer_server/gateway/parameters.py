"""Parameters of a chat completion request, and what the gateway does with each.

Frameworks send parameters of OpenAI's API that do not change what is sampled here. The gateway drops them and notes
them in the ledger. It refuses a parameter that would change the answer in a way that the server does not support:
without the error, training would use answers to another request than the client's.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from trainer_server.gateway.errors import APIError


class Handling(StrEnum):
    """What happens to a parameter."""

    used = "used"
    """The gateway reads the parameter and decides what the engine gets."""
    forwarded = "forwarded"
    """The engine gets the parameter unchanged."""
    dropped = "dropped"
    """The engine does not get the parameter, which changes nothing about the answer. The ledger's row notes it."""
    refused = "refused"
    """The request is answered with status 400 and what to do instead."""


OPENAI: dict[str, Handling] = {
    "messages": Handling.forwarded,
    "model": Handling.used,
    "audio": Handling.dropped,
    "frequency_penalty": Handling.forwarded,
    "function_call": Handling.refused,
    "functions": Handling.refused,
    "logit_bias": Handling.forwarded,
    "logprobs": Handling.used,
    "max_completion_tokens": Handling.used,
    "max_tokens": Handling.used,
    "metadata": Handling.dropped,
    "modalities": Handling.dropped,
    "moderation": Handling.refused,
    "n": Handling.used,
    "parallel_tool_calls": Handling.forwarded,
    "prediction": Handling.dropped,
    "presence_penalty": Handling.forwarded,
    "prompt_cache_key": Handling.dropped,
    "prompt_cache_options": Handling.dropped,
    "prompt_cache_retention": Handling.dropped,
    "reasoning_effort": Handling.forwarded,
    "response_format": Handling.forwarded,
    "safety_identifier": Handling.dropped,
    "seed": Handling.used,
    "service_tier": Handling.dropped,
    "stop": Handling.forwarded,
    "store": Handling.dropped,
    "stream": Handling.forwarded,
    "stream_options": Handling.used,
    "temperature": Handling.used,
    "tool_choice": Handling.forwarded,
    "tools": Handling.forwarded,
    "top_logprobs": Handling.used,
    "top_p": Handling.forwarded,
    "user": Handling.dropped,
    "verbosity": Handling.dropped,
    "web_search_options": Handling.refused,
}
"""All parameters of `chat.completions.create` in OpenAI's Python SDK. A test fails when the SDK has others."""

VLLM: dict[str, Handling] = {
    "add_generation_prompt": Handling.forwarded,
    "chat_template_kwargs": Handling.forwarded,
    "continue_final_message": Handling.forwarded,
    "ignore_eos": Handling.forwarded,
    "include_reasoning": Handling.used,
    "include_stop_str_in_output": Handling.forwarded,
    "min_p": Handling.forwarded,
    "min_tokens": Handling.forwarded,
    "repetition_penalty": Handling.forwarded,
    "return_token_ids": Handling.used,
    "skip_special_tokens": Handling.forwarded,
    "stop_token_ids": Handling.forwarded,
    "structured_outputs": Handling.forwarded,
    "top_k": Handling.forwarded,
}
"""Parameters of vLLM that the gateway supports too."""

PARAMETERS = OPENAI | VLLM

_REMEDIES = {
    "function_call": "it is deprecated: use `tool_choice`",
    "functions": "they are deprecated: use `tools`",
    "moderation": "no moderation model is served here; moderate inputs and answers in the agent",
    "web_search_options": "this server does not search the web; give the agent a search tool",
}


def check_parameters(body: Mapping[str, Any]) -> list[str]:
    """Checks the parameters of a chat request; see `check_names`.

    Raises:
        APIError: 400 for a parameter that is unknown or not supported.
    """
    dropped = check_names(body, PARAMETERS, _REMEDIES)
    modalities = body.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise APIError(
            400,
            f'`modalities` {modalities!r}: answers are text; leave it out, or send ["text"]',
            code="unsupported_parameter",
            param="modalities",
        )
    return dropped


def check_names(body: Mapping[str, Any], parameters: Mapping[str, Handling], remedies: Mapping[str, str]) -> list[str]:
    """Checks which parameters a request has. A known parameter that is null counts as not given, and one that is
    refused may be empty or false.

    Args:
        body: Body of the request.
        parameters: The parameters of its API.
        remedies: By parameter that is refused: what to do instead.

    Returns:
        Names of the parameters that are dropped.

    Raises:
        APIError: 400 for a parameter that is unknown or not supported.
    """
    given = sorted(name for name, value in body.items() if name not in parameters or value is not None)
    for name in given:
        if name not in parameters:
            raise APIError(400, f"unknown parameter: {name!r}", code="unknown_parameter", param=name)
        if parameters[name] == Handling.refused and body[name] not in ([], {}, False):
            raise APIError(400, f"`{name}`: {remedies[name]}", code="unsupported_parameter", param=name)
    return [name for name in given if parameters[name] == Handling.dropped]


def forwarded_parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a request that the engine gets unchanged."""
    return {
        name: value for name, value in body.items() if value is not None and PARAMETERS.get(name) == Handling.forwarded
    }
