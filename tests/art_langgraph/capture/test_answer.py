"""What tools and models were given and answered, whatever it was."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from openai import LengthFinishReasonError
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from art_langgraph import TrajectoryStore, rollout
from art_langgraph.capture.answer import answer_in, answer_of, completion_id, token_counts, tool_answer
from art_langgraph.messages import to_openai
from art_langgraph.trajectory import ToolCall
from tests.support.runs.chat_models import Answering


@tool
def hands_over(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Hand over, with the history."""
    history = [HumanMessage("x" * 8000), ToolMessage("earlier", tool_call_id="call-0", status="error")]
    said = ToolMessage("handed over", tool_call_id=tool_call_id)
    return Command(goto="expert", update={"messages": [*history, said], "other": 1})


@tool
def refuses(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Refuse, as a message."""
    return Command(update={"messages": [ToolMessage("no such file", tool_call_id=tool_call_id, status="error")]})


@tool
def both(tool_call_id: Annotated[str, InjectedToolCallId]) -> list[Any]:
    """Give a command and a message."""
    return [Command(update={"other": 2}), ToolMessage("listed", tool_call_id=tool_call_id)]


async def called(*names: str) -> list[ToolCall]:
    """The tool calls of a run in which a model calls these tools at once."""
    asked = AIMessage("", tool_calls=[{"name": name, "args": {}, "id": f"call-{name}"} for name in names])
    model = GenericFakeChatModel(messages=iter([asked]))
    graph = StateGraph(MessagesState).add_node("model", lambda state: {"messages": [model.invoke("x")]})
    graph.add_node("tools", ToolNode([hands_over, refuses, both])).add_node("expert", lambda state: {})
    found = await rollout(graph.add_edge(START, "model").add_edge("model", "tools").compile(), "x")
    assert found.error is None
    return found.tool_calls


@pytest.mark.parametrize(
    ("name", "result", "is_error"),
    [("hands_over", "handed over", False), ("refuses", "no such file", True), ("both", "listed", False)],
)
async def test_a_tool_that_returns_a_command_answers_with_the_message_in_it(
    name: str, result: str, is_error: bool
) -> None:
    (call,) = await called(name)
    assert (call.tool, call.result, call.is_error, call.tool_call_id) == (name, result, is_error, f"call-{name}")


async def test_an_unknown_tool_is_recorded_beside_one_that_returns_a_command() -> None:
    calls = {call.tool_call_id: call for call in await called("hands_over", "nothing")}
    assert calls["call-nothing"].is_error
    assert calls["call-hands_over"].result == "handed over"


def test_a_command_without_a_message_says_where_it_goes() -> None:
    assert tool_answer(Command(goto="expert", update={"history": "x" * 8000}), "call-1") == (
        "Command(goto='expert')",
        None,
    )


def test_tokens_are_what_the_answer_says() -> None:
    usage: Any = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12, "input_token_details": {"cache_read": 8}}
    assert token_counts(AIMessage("hello", usage_metadata=usage)) == (9, 8, 3)
    assert token_counts(AIMessage("hello", usage_metadata=usage), first=False) == (0, None, 0), "the first has all"
    assert token_counts(AIMessage("hello")) == (None, None, None)


@tool(response_format="content_and_artifact")
def reads(image: bytes, frame: Any) -> tuple[str, dict[str, Any]]:
    """Read an image."""
    return "a cat", {"structured_content": {"frame": frame, "image": image}}


async def test_a_run_with_arguments_that_are_no_json_is_stored(tmp_path: Path) -> None:
    class Frame:
        def __repr__(self) -> str:
            return "<3 rows>"

    png = b"\x89PNG\xff"

    def node(state: MessagesState) -> dict[str, Any]:
        call = {"name": "reads", "args": {"image": png, "frame": Frame()}, "id": "call-1", "type": "tool_call"}
        read = reads.invoke(call)
        block = {"type": "file", "file": {"file_data": png}}
        return {"messages": [Answering().invoke([HumanMessage([block])]), read]}

    store = TrajectoryStore(tmp_path / "s.sqlite")
    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    await rollout(graph, "x", store=store)
    (run,) = store
    (call,) = run.tool_calls
    assert (call.result, call.arguments) == ("a cat", {"image": repr(png), "frame": "<3 rows>"})
    assert call.structured == call.arguments
    assert run.completions[0].messages[0]["content"][0]["file"] == {"file_data": repr(png)}


def error_with(status: int, body: bytes) -> ValueError:
    error = ValueError("raised by a client")
    error.__dict__.update(response=httpx.Response(status, content=body))
    return error


def test_a_stream_that_was_cut_off_has_its_answer_in_the_error() -> None:
    fields: dict[str, Any] = {"created": 1, "object": "chat.completion"}
    message = ChatCompletionMessage(role="assistant", content='{"value"', reasoning_content="a number")  # type: ignore[call-arg]
    choices: Any = [{"index": 0, "finish_reason": "length", "message": message}]
    ours = ChatCompletion(id="chatcmpl-1", model="agent@3", choices=choices, **fields)
    answer = answer_in(LengthFinishReasonError(completion=ours))
    assert answer is not None
    ((generation,),) = answer.generations
    assert isinstance(generation, ChatGeneration)
    assert completion_id(generation.message) == "chatcmpl-1"
    assert to_openai([generation.message]) == [
        {"role": "assistant", "content": '{"value"', "reasoning_content": "a number"}
    ]
    assert answer_of(answer)["gen_ai.response.finish_reasons"] == ["length"]
    other = ours.model_copy(update={"model": "gpt-4o"})
    assert answer_in(LengthFinishReasonError(completion=other)) is None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("nothing came"),
        error_with(400, b'{"choices": []}'),
        error_with(200, b"<html>"),
        error_with(200, b'{"detail": "no answer"}'),
        error_with(200, b'{"choices": []}'),
        error_with(200, b'{"choices": null}'),
        error_with(200, b'{"error": {"message": "late"}, "choices": []}'),
        error_with(200, b"[]"),
    ],
)
def test_an_error_without_an_answer_has_none(error: ValueError) -> None:
    assert answer_in(error) is None


def test_a_stream_that_broke_has_no_body_to_read() -> None:
    error = ValueError("the stream broke")
    error.__dict__.update(response=httpx.Response(200, stream=httpx.ByteStream(b"{}")))
    assert answer_in(error) is None
