"""Messages of a run: live, stored, imported, and of a run that failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_messages,
    message_chunk_to_message,
)
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from art_langgraph import Scenario, Trajectory, TrajectoryStore, rollout
from art_langgraph.messages import as_written, from_openai, normalised_input, plain, revive, to_openai, user_text
from art_langgraph.trajectory import CompletionCall
from tests.support.runs.chat_models import MakeModel

TEXTS = st.text(alphabet=st.characters(exclude_categories=()), max_size=20)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
DICTS = st.dictionaries(TEXTS, DATA, max_size=3)
BLOCKS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}) | TEXTS, max_size=3)
CALLS = st.lists(
    st.builds(lambda name, args, at: {"name": name, "args": args, "id": at, "type": "tool_call"}, TEXTS, DICTS, TEXTS),
    max_size=2,
)
COMMON: dict[str, Any] = {
    "content": TEXTS | BLOCKS,
    "additional_kwargs": DICTS,
    "response_metadata": DICTS,
    "id": st.none() | TEXTS,
    "name": st.none() | TEXTS,
}
USAGE = st.none() | st.fixed_dictionaries(
    {"input_tokens": st.integers(0, 9), "output_tokens": st.integers(0, 9), "total_tokens": st.integers(0, 18)}
)
MESSAGES = st.one_of(
    st.builds(HumanMessage, **COMMON),
    st.builds(SystemMessage, **COMMON),
    st.builds(ChatMessage, role=TEXTS, **COMMON),
    st.builds(AIMessage, tool_calls=CALLS, usage_metadata=USAGE, **COMMON),
    st.builds(AIMessageChunk, **COMMON),
    st.builds(ToolMessage, tool_call_id=TEXTS, artifact=DATA, status=st.sampled_from(["success", "error"]), **COMMON),
    TEXTS.map(lambda at: RemoveMessage(id=at)),
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> TrajectoryStore:
    return TrajectoryStore(tmp_path_factory.mktemp("store") / "s.sqlite")


@given(messages=st.lists(MESSAGES, max_size=3), state=DICTS)
def test_what_is_written_is_read_with_equal_messages(
    shared: TrajectoryStore, messages: list[BaseMessage], state: dict[str, Any]
) -> None:
    output = {**state, "messages": messages}
    written = Trajectory(scenario=Scenario(id="x", input={"messages": messages}), output=output)
    shared.add(written)
    found = shared.get(written.id)
    assert found is not None
    assert found.output == output
    assert found.scenario == written.scenario
    assert found.messages == written.messages == messages
    assert found.final_text == written.final_text
    try:
        imported = Trajectory.model_validate_json(written.model_dump_json())
    except ValueError:  # half a surrogate pair
        return
    assert imported.output == output


def test_only_messages_are_constructed() -> None:
    fine = plain(HumanMessage("x"))
    assert revive(fine) == HumanMessage("x")
    for other in (
        {**fine, "id": ["langchain_core", "prompts", "prompt", "PromptTemplate"], "kwargs": {"template": "x"}},
        {**fine, "id": ["langchain_openai", "chat_models", "base", "ChatOpenAI"]},
        {**fine, "kwargs": {"no": "content"}},
        {**fine, "type": "secret"},
    ):
        assert revive(other) == other


class Own(AIMessage):
    """A message class of a user's."""


class State(BaseModel):
    messages: list[Any]


def test_messages_of_states_of_every_kind() -> None:
    def run(output: Any) -> Trajectory:
        return Trajectory(scenario=Scenario(input="x"), output=output)

    answer = AIMessage("42")
    for output in (
        {"messages": [HumanMessage("q"), answer]},
        {"messages": [("user", "q"), ("ai", "42")]},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "42"}]},
        State(messages=[HumanMessage("q"), answer]),
        [HumanMessage("q"), answer],
    ):
        assert run(output).messages == [HumanMessage("q"), answer], output
        assert run(output).final_text == "42"
    assert (run(answer).messages, run(answer).final_text) == ([answer], "42")
    assert (run("just text").messages, run("just text").final_text) == ([], "just text")
    for nothing in (None, 3, {"said": ["x"]}, {"messages": 3}, {"messages": [object()]}):
        assert (run(nothing).messages, run(nothing).final_text) == ([], "")
    asked = AIMessage("", tool_calls=[{"name": "a", "args": {}, "id": "1"}])
    assert run({"messages": [answer, asked, ToolMessage("r", tool_call_id="1")]}).final_text == ""
    assert revive(plain(Own("mine"))) == AIMessage("mine")


def test_a_run_whose_state_has_no_messages_has_those_of_its_last_answered_call() -> None:
    call = CompletionCall(
        id="chatcmpl-1",
        started=0.0,
        messages=[{"role": "user", "content": "q"}],
        message={"role": "assistant", "content": "42"},
    )
    for output in ({"number": 42}, None):
        found = Trajectory(scenario=Scenario(input="x"), output=output, completions=[call])
        assert found.messages == [HumanMessage("q"), AIMessage("42")]
        assert found.final_text == "42"
    assert Trajectory(scenario=Scenario(input="x"), output="forty-two", completions=[call]).final_text == "forty-two"


def test_a_failed_run_has_the_messages_of_its_last_answered_call() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    broken = {"id": "2", "type": "function", "function": {"name": "add", "arguments": '{"a": '}}
    given = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    answered = CompletionCall(
        id="chatcmpl-1",
        started=0.0,
        messages=given,
        message={"role": "assistant", "content": "thinking", "tool_calls": [call, broken]},
    )
    unanswered = CompletionCall(id=None, started=1.0, messages=given, error="TimeoutError: ")
    found = Trajectory(scenario=Scenario(input="x"), error="ValueError: x", completions=[answered, unanswered])
    system, user, answer = found.messages
    assert (system, user) == (SystemMessage("s"), HumanMessage("q"))
    assert isinstance(answer, AIMessage)
    assert [(one["name"], one["args"], one["id"]) for one in answer.tool_calls] == [("add", {"a": 1}, "1")]
    assert [(one["name"], one["args"], one["id"]) for one in answer.invalid_tool_calls] == [("add", '{"a": ', "2")]
    assert found.final_text == "thinking"
    assert Trajectory(scenario=Scenario(input="x"), error="ValueError: x").final_text == ""


async def test_a_reward_reads_live_stored_imported_and_failed_runs_alike(make: MakeModel, tmp_path: Path) -> None:
    model, store = make(), TrajectoryStore(tmp_path / "s.sqlite")

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def fails(state: MessagesState) -> None:
        raise ValueError("too bad")

    def reward(run: Trajectory) -> float:
        return float("forty" in run.final_text) + len(run.messages)

    good = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n")
    bad = StateGraph(MessagesState).add_node("n", node).add_node("f", fails).add_edge(START, "n").add_edge("n", "f")
    for graph in (good.compile(), bad.compile()):
        live = await rollout(graph, "say forty", reward, store=store)
        stored = store.get(live.id)
        assert stored is not None
        imported = Trajectory.model_validate(json.loads(live.model_dump_json()))
        assert [live.reward, reward(stored), reward(imported)] == [3.0, 3.0, 3.0]
        assert stored.messages == imported.messages == live.messages


@pytest.mark.parametrize(
    "message",
    [
        "say x",
        ("user", "say x"),
        ["human", "say x"],
        {"role": "user", "content": "say x"},
        {"type": "human", "content": [{"type": "text", "text": "say x"}]},
        HumanMessage("say x", id="m1"),
    ],
)
def test_a_users_message_is_its_text_in_whatever_form(message: Any) -> None:
    assert user_text({"messages": [message]}) == "say x"
    if not isinstance(message, list):
        assert user_text({"messages": message}) == "say x"
    assert normalised_input({"messages": [message]}) == normalised_input("say x")


@pytest.mark.parametrize(
    "given",
    [
        {"messages": [HumanMessage("say x"), HumanMessage("say y")]},
        {"messages": ["say x"], "seed": 1},
        {"messages": [("system", "say x")]},
        {"messages": [AIMessage("say x")]},
        {"messages": [HumanMessage([{"type": "text", "text": "say x"}, {"type": "image_url", "image_url": "y"}])]},
        {"messages": []},
        {"messages": [{"content": "say x"}]},
        {"role": "user", "content": "say x"},
        ["say x", "say y"],
        {"question": "say x"},
        None,
    ],
)
def test_what_is_more_or_less_than_a_users_message_stays_as_it_is(given: Any) -> None:
    assert user_text(given) is None
    assert normalised_input(given) is given


BROKEN = '{"text": "He said "hi""}'
INVALID: Any = {"name": "write", "args": BROKEN, "id": "c1", "error": "no JSON", "type": "invalid_tool_call"}
VALID: Any = {"name": "write", "args": {"text": "hi"}, "id": "c1", "type": "tool_call"}


def called(arguments: str, id: str | None = "c1") -> list[dict[str, Any]]:
    return [{"type": "function", "id": id, "function": {"name": "write", "arguments": arguments}}]


@pytest.mark.parametrize(
    ("message", "content", "fields"),
    [
        # LangChain's own blocks (output_version="v1"), and calls that are no JSON
        (AIMessage("", invalid_tool_calls=[INVALID]), "", {"tool_calls": called(BROKEN)}),
        (AIMessage([INVALID], invalid_tool_calls=[INVALID]), "", {"tool_calls": called(BROKEN)}),
        (AIMessage("", invalid_tool_calls=[{**INVALID, "args": None}]), "", {"tool_calls": called("{}")}),
        (
            AIMessage(
                [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "So:"}, VALID], tool_calls=[VALID]
            ),
            "So:",
            {"reasoning_content": "hm", "tool_calls": called('{"text": "hi"}')},
        ),
        (
            AIMessage([{"type": "non_standard", "value": {"type": "thinking", "thinking": "hm"}}, "So"]),
            "So",
            {"reasoning_content": "hm"},
        ),
        # Anthropic's
        (
            AIMessage(
                [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "redacted_thinking", "data": "…"},
                    {"type": "text", "text": "So:"},
                    {"type": "tool_use", "id": "c1", "name": "write", "input": {"text": "hi"}},
                ],
                tool_calls=[VALID],
            ),
            "So:",
            {"reasoning_content": "hm", "tool_calls": called('{"text": "hi"}')},
        ),
        (
            AIMessage([{"type": "tool_use", "id": "c1", "name": "write", "input": {}, "partial_json": BROKEN}]),
            "",
            {"tool_calls": called(BROKEN)},
        ),
        (
            AIMessage(
                [
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                    {"type": "text", "text": "It is "},
                    {"type": "text", "text": "so", "citations": []},
                ]
            ),
            "It is so",
            {
                "server_tool_calls": [
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                ]
            },
        ),
        # OpenAI's Responses
        (
            AIMessage(
                [
                    {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
                    {"type": "web_search_call", "id": "ws"},
                    {"type": "function_call", "call_id": "c1", "id": "fc", "name": "write", "arguments": BROKEN},
                ]
            ),
            "",
            {
                "reasoning_content": "hm",
                "tool_calls": called(BROKEN),
                "server_tool_calls": [{"type": "web_search_call", "id": "ws"}],
            },
        ),
        (AIMessage([{"type": "refusal", "refusal": "no"}]), "", {"refusal": "no"}),
        # Google's, and others
        (
            AIMessage([{"type": "function_call", "name": "write", "args": {"text": "hi"}}], tool_calls=[VALID]),
            "",
            {"tool_calls": called('{"text": "hi"}')},
        ),
        (
            AIMessage([{"type": "reasoning_content", "reasoning_content": {"text": "hm", "signature": "s"}}]),
            "",
            {"reasoning_content": "hm"},
        ),
        (AIMessage("So", additional_kwargs={"reasoning_content": "hm"}), "So", {"reasoning_content": "hm"}),
        (
            AIMessage("", additional_kwargs={"function_call": {"name": "write", "arguments": BROKEN}}),
            "",
            {"tool_calls": called(BROKEN, id=None)},
        ),
        (AIMessage([]), "", {}),
        (AIMessage(""), "", {}),
        (
            AIMessage([{"type": "text", "text": "See"}, {"type": "image", "base64": "QQ==", "mime_type": "image/png"}]),
            [
                {"type": "text", "text": "See"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}},
            ],
            {},
        ),
        (
            AIMessage([{"type": "text", "text": "See"}, {"type": "hologram", "url": "h"}]),
            [{"type": "text", "text": "See"}, {"type": "hologram", "url": "h"}],
            {},
        ),
    ],
)
def test_an_answer_is_the_same_whichever_provider_wrote_it(
    message: AIMessage, content: Any, fields: dict[str, Any]
) -> None:
    expected = {"role": "assistant", "content": content, **fields}
    assert to_openai([message]) == [expected]
    assert to_openai([HumanMessage("x"), message])[1] == expected, "in prompts, too"
    chunk = AIMessageChunk(**{**message.model_dump(exclude={"type"}), "tool_call_chunks": []})
    if not (message.tool_calls or message.invalid_tool_calls):  # chunks make them of `tool_call_chunks`
        assert to_openai([chunk]) == [expected]


def test_a_stream_of_a_broken_call_keeps_what_was_written() -> None:
    parts = [AIMessageChunk("", tool_call_chunks=[{"name": "write", "args": "", "id": "c1", "index": 0}])]
    parts += [
        AIMessageChunk("", tool_call_chunks=[{"name": None, "args": part, "id": None, "index": 0}]) for part in BROKEN
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    expected = {"role": "assistant", "content": "", "tool_calls": called(BROKEN)}
    assert to_openai([whole]) == to_openai([message_chunk_to_message(whole)]) == [expected]


def test_a_call_that_was_cut_off_has_what_was_written() -> None:
    chunks: list[Any] = [
        {"name": "write", "args": '{"text": "He sa', "id": "c2", "index": 1},
        {"name": "write", "args": '{"text": "hi"}', "id": "c1", "index": 0},
        {"name": "write", "args": None, "id": "c3", "index": 2},
    ]
    answer = AIMessageChunk("", tool_call_chunks=chunks)
    assert [call["args"] for call in answer.tool_calls] == [{"text": "He sa"}, {"text": "hi"}, {}], "LangChain's"
    written = as_written(answer)
    (converted,) = to_openai([written])
    expected = [*called('{"text": "hi"}'), *called("{}", "c3"), *called('{"text": "He sa', "c2")]
    assert converted["tool_calls"] == expected
    assert as_written(AIMessageChunk("", tool_call_chunks=chunks[1:])).tool_calls[0] == VALID


def test_calls_without_ids_and_with_the_same_name_are_all_kept() -> None:
    blocks = [{"type": "function_call", "name": "write", "args": {"text": text}} for text in ("a", "a", "b")]
    same = [called(json.dumps(block["args"]), None)[0] for block in blocks]
    (alone,) = to_openai([AIMessage(blocks)])
    assert alone["tool_calls"] == same
    (beside,) = to_openai([AIMessage(blocks, tool_calls=[VALID])])
    assert beside["tool_calls"] == [*called('{"text": "hi"}'), *same[1:]], "a block of each call"
    copied = {"function_call": {"name": "write", "arguments": '{"text": "hi"}'}}
    (copy,) = to_openai([AIMessage(blocks[:1], tool_calls=[VALID], additional_kwargs=copied)])
    assert copy["tool_calls"] == called('{"text": "hi"}')


@pytest.mark.parametrize(
    ("arguments", "args"),
    [(None, {}), ("", {}), (" ", {}), ({"text": "hi"}, {"text": "hi"}), ('{"text": 1}', {"text": 1})],
)
def test_arguments_of_calls_are_read_as_everywhere(arguments: Any, args: Any) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "write", "arguments": arguments}}]
    (message,) = from_openai([{"role": "assistant", "content": "", "tool_calls": calls}])
    assert isinstance(message, AIMessage)
    assert (message.tool_calls, message.invalid_tool_calls) == ([{**VALID, "args": args}], [])


@pytest.mark.parametrize("arguments", ["[1]", "null", "3", BROKEN])
def test_arguments_that_are_no_object_are_invalid_and_stay(arguments: str) -> None:
    given = {"role": "assistant", "content": "", "tool_calls": called(arguments)}
    (message,) = from_openai([given])
    assert isinstance(message, AIMessage)
    assert (message.tool_calls, len(message.invalid_tool_calls)) == ([], 1)
    assert to_openai([message]) == [given]
    assert to_openai([AIMessage(**message.model_dump(exclude={"type"}))]) == [given]


def test_messages_that_are_no_answers() -> None:
    results = [{"type": "tool_result", "tool_use_id": "c1", "content": "done"}]
    assert to_openai(
        [
            SystemMessage("s"),
            HumanMessage([{"type": "text", "text": "a"}, {"type": "document", "source": {"data": b"x"}}]),
            HumanMessage(results),
            ToolMessage([{"type": "video", "url": "v"}], tool_call_id="c1"),
            ChatMessage(role="assistant", content=[{"type": "thinking", "thinking": "hm"}, "So"]),
            ChatMessage(role="critic", content="c"),
        ]
    ) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "document", "source": {"data": "b'x'"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "video", "url": "v"}]},
        {"role": "assistant", "content": "So", "reasoning_content": "hm"},
        {"role": "critic", "content": "c"},
    ]


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage("hello"),
        HumanMessage("", name="Ada"),
        SystemMessage("be brief"),
        SystemMessage("be brief", additional_kwargs={"__openai_role__": "developer"}),
        ToolMessage("4", tool_call_id="call-1", name="add"),
        ToolMessage("no", tool_call_id="call-1", status="error", artifact={"a": 1}),
        HumanMessage(["hello", {"type": "text", "text": "you"}]),
    ],
)
def test_messages_of_text_are_written_as_langchain_writes_them(message: BaseMessage) -> None:
    assert to_openai([message]) == convert_to_openai_messages([message])
