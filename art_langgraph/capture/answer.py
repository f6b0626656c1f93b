"""What answers contain: of a chat model, its id at the gateway and its model; of a tool, its message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_openai.chat_models import base
from langgraph.types import Command
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from trainer_server.common import gen_ai
from trainer_server.wire.completions import CHAT, ledger_id
from trainer_server.wire.headers import COMPLETION


def completion_id(message: BaseMessage) -> str | None:
    """The id under which our gateway recorded an answer; None for answers of other servers.

    Our gateway repeats the id as `system_fingerprint`, which every LangChain version keeps, streaming or not. The
    Responses API and Anthropic's have no such field: there it is the answer's own id.
    """
    if fingerprint := gateway_id(message.response_metadata.get("system_fingerprint")):
        return fingerprint
    own_ids = (str(message.response_metadata.get("id")), str(message.id))
    return next(filter(None, (ledger_id(own_id) for own_id in own_ids if not own_id.startswith(CHAT))), None)


def answer_of(response: LLMResult) -> dict[str, Any]:
    """The attributes of a model call's span, from its answer."""
    messages = [generation.message for generation in response.generations[0] if isinstance(generation, ChatGeneration)]
    if not messages:
        return {}
    first = messages[0]
    usage: Any = getattr(first, "usage_metadata", None) or {}
    return gen_ai.answer_attributes(
        id=completion_id(first) or first.response_metadata.get("id"),
        model=first.response_metadata.get("model_name") or (response.llm_output or {}).get("model_name"),
        prompt=usage.get("input_tokens"),
        sampled_tokens=usage.get("output_tokens"),
        reasons=[message.response_metadata.get("finish_reason") for message in messages],
    )


def answer_in(error: BaseException) -> LLMResult | None:
    """The answer that a client of OpenAI's got and did not take: it does not fit the response format, or was cut off.

    Args:
        error: How the model call ended.

    Returns:
        The answer as it was sent; None where none came, or one that is no answer.
    """
    try:
        body = _body_of(error)
        if not isinstance(body, dict) or body.get("error"):
            return None
        if body.get("object") == "response":
            result = base._construct_lc_result_from_responses_api(Response.construct(**body))
            return LLMResult(generations=[[*result.generations]])
        result = base.BaseChatOpenAI.model_construct()._create_chat_result(body)
        for generation, choice in zip(result.generations, body["choices"], strict=True):
            generation.message.response_metadata = {**(result.llm_output or {}), **(generation.generation_info or {})}
            keep_reasoning(generation.message, choice["message"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return None  # no answer, or a stream, whose body is gone
    return LLMResult(generations=[[*result.generations]], llm_output=result.llm_output) if result.generations else None


def _body_of(error: BaseException) -> Any:
    """The body of the answer that came before an error; None where none came."""
    response: Any = getattr(error, "response", None)
    completion: Any = getattr(error, "completion", None)
    if getattr(response, "is_success", False):  # of httpx or httpx2
        return response.json()
    # A stream that was cut off ends before its fingerprint, which is the id as well. Other servers have ids that begin
    # alike, but no versions.
    if isinstance(completion, ChatCompletion) and served_version(completion.model) is not None:
        return {**completion.model_dump(warnings=False), "system_fingerprint": completion.id}
    return None


def keep_reasoning(message: BaseMessage, answer: Mapping[str, Any]) -> None:
    """Keeps the reasoning text, which ChatOpenAI drops, in the field that LangChain's reasoning models use.

    Args:
        message: Of LangChain, which gets the text.
        answer: The same as the server sent it.
    """
    if thought := answer.get("reasoning") or answer.get("reasoning_content"):
        message.additional_kwargs["reasoning_content"] = thought


def refusal_id(error: BaseException) -> str | None:
    """The id under which our gateway recorded that it gave no answer; None where it recorded nothing of the request."""
    headers = getattr(getattr(error, "response", None), "headers", None)
    return headers.get(COMPLETION) if isinstance(headers, Mapping) else None


def gateway_id(fingerprint: object) -> str | None:
    """A fingerprint, if it is an id of our gateway."""
    return fingerprint if isinstance(fingerprint, str) and fingerprint.startswith(CHAT) else None


def served_version(model: object) -> int | None:
    """The version in the name that our gateway answers under: `policy@version`, or the base model's name."""
    _, at, number = str(model).rpartition("@")
    return int(number) if at and number.isdigit() else None


def from_cache(message: BaseMessage) -> bool:
    """Whether LangChain's cache answered: it marks its answers by a cost of nothing."""
    usage: Any = getattr(message, "usage_metadata", None) or {}
    return bool(usage.get("total_cost") == 0)


def token_counts(message: BaseMessage, *, first: bool = True) -> tuple[int | None, int | None, int | None]:
    """Tokens of the prompt, those of them that came from the engine's cache, and tokens that were sampled.

    Args:
        message: An answer.
        first: Whether it is the first answer to its request. Each says the tokens of all, so the others count none.

    Returns:
        The numbers; None for each that the answer does not say.
    """
    usage: Any = getattr(message, "usage_metadata", None)
    if not usage:
        return None, None, None
    if not first:
        return 0, None, 0
    read = (usage.get("input_token_details") or {}).get("cache_read")
    return usage.get("input_tokens"), read, usage.get("output_tokens")


def messages_in(output: Any) -> Iterator[BaseMessage]:
    """The messages in what a tool returned or a node wrote, also those in commands."""
    if isinstance(output, BaseMessage):
        yield output
    elif isinstance(output, Command):
        yield from messages_in(output.update)
    elif isinstance(output, list | tuple):
        for item in output:
            yield from messages_in(item)
    elif messages := output.get("messages") if isinstance(output, Mapping) else getattr(output, "messages", None):
        yield from messages_in(messages)


def tool_messages(output: Any) -> Iterator[ToolMessage]:
    """The tool messages among `messages_in`."""
    return (message for message in messages_in(output) if isinstance(message, ToolMessage))


def mcp_server(metadata: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Name and version of the MCP server behind a tool; None where the tool does not say.

    Args:
        metadata: Of the tool's run. The tools of `langchain.mcp.MCPAdapter` name their server there.
    """
    mcp = metadata.get("mcp")
    server = mcp.get("server") if isinstance(mcp, Mapping) else None
    if not isinstance(server, Mapping) or not isinstance(server.get("name"), str):
        return None, None
    return server["name"], None if server.get("version") is None else str(server["version"])


def structured_content(message: ToolMessage | None) -> Any:
    """The structured result of an MCP tool, which the tools of `langchain.mcp` and langchain-mcp-adapters put into the
    artifact of their message; None where there is none."""
    artifact = message.artifact if message is not None else None
    return artifact.get("structured_content") if isinstance(artifact, Mapping) else None


def tool_answer(output: Any, call_id: str | None) -> tuple[str, ToolMessage | None]:
    """What a tool answered.

    Args:
        output: What it returned. A command may also have the history that it hands over.
        call_id: Id of the model's tool call; None: unknown.

    Returns:
        The text, and the tool message that has it, if any.
    """
    messages = list(tool_messages(output))
    if answers := [message for message in messages if call_id in (None, message.tool_call_id)]:
        return answers[-1].text, answers[-1]
    if isinstance(output, Command):
        return f"Command(goto={output.goto!r})" if output.goto else "Command", None
    return (output.text if isinstance(output, BaseMessage) else str(output)), None
