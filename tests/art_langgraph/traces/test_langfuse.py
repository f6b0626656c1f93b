"""Langfuse: blob storage exports, pages of the API, downloaded traces, scores. SDK types: test_real_exporters.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from art_langgraph.traces import ForeignRun, read_runs
from art_langgraph.traces.problems import Skips
from tests.support.runs.foreign_runs import (
    ANSWER,
    ASKED,
    CALLS,
    CONVERSATION,
    COUNTS,
    RAIN,
    WEATHER,
    counted,
    essence,
    write,
)

OBSERVATION = {
    "project_id": "p",
    "environment": "default",
    "parent_observation_id": "",
    "level": "DEFAULT",
    "status_message": "",
    "version": "",
    "metadata": {},
    "provided_model_name": "",
    "trace_name": "forecaster",
    "session_id": "th-1",
    "tags": ["a"],
}


def read(path: Path, *records: Any) -> tuple[list[ForeignRun], list[str]]:
    skips = Skips()
    runs = list(read_runs("langfuse", write(path / "x.jsonl.gz", *records), skips=skips))
    return runs, list(skips)


def enriched(id: str, type: str, second: int, given: Any, said: Any, **more: Any) -> dict[str, Any]:
    """A row of `observations_v2/`."""
    return {
        **OBSERVATION,
        "id": id,
        "trace_id": more.pop("trace_id", "t1"),
        "type": type,
        "name": more.pop("name", type.lower()),
        "start_time": f"2026-03-01 12:00:{second:02}.500000",
        "end_time": f"2026-03-01 12:00:{second + 1:02}.500000",
        "input": given if isinstance(given, str) else json.dumps(given),
        "output": said if isinstance(said, str) else json.dumps(said),
        **more,
    }


def agent() -> list[dict[str, Any]]:
    """A run of an agent with a tool: root span, generation, tool, generation."""
    inside = {"parent_observation_id": "o1"}
    lc_call = {**CALLS, "content": "", "tool_calls": [{"name": "weather", "args": {"city": "Oslo"}, "id": "call_1"}]}
    definition = {"role": "tool", "content": WEATHER}
    return [
        enriched("o1", "AGENT", 0, {"messages": [{"type": "human", "content": "Weather in Oslo?"}]}, ANSWER["content"]),
        enriched("o2", "GENERATION", 1, [*ASKED, definition], lc_call, provided_model_name="gpt-4o", **inside),
        enriched("o3", "TOOL", 2, {"city": "Oslo"}, RAIN["content"], name="weather", **inside),
        enriched("o4", "GENERATION", 3, [*ASKED, lc_call, RAIN, definition], ANSWER, **inside),
    ]


def score(name: str, value: Any, **more: Any) -> dict[str, Any]:
    """A row of `scores/`."""
    return {
        "id": f"s-{name}",
        "timestamp": "2026-03-01 12:01:00.000000",
        "project_id": "p",
        "environment": "default",
        "trace_id": "t1",
        "observation_id": None,
        "session_id": None,
        "dataset_run_id": None,
        "name": name,
        "value": value,
        "source": "ANNOTATION",
        "comment": None,
        "data_type": "NUMERIC",
        "string_value": None,
        **more,
    }


def test_enriched_observations_and_scores(tmp_path: Path) -> None:
    (run,), left_out = read(tmp_path, score("helpful", 0.5), *reversed(agent()), score("helpful", 1))
    assert left_out == []
    assert (run.id, run.name, run.thread_id, run.seconds) == ("t1", "forecaster", "th-1", 1.0)
    assert run.scenario().input == {"messages": [{"role": "user", "content": "Weather in Oslo?"}]}
    (demonstration,) = run.demonstrations()
    assert essence(demonstration.messages) == essence(CONVERSATION)
    assert (demonstration.tools, demonstration.answers("all")) == ([WEATHER], [2, 4])
    assert [(used.tool, used.arguments, used.result) for used in run.tool_calls] == [
        ("weather", {"city": "Oslo"}, RAIN["content"])
    ]
    assert run.metrics == {"helpful": 0.75}


def test_traces_and_observations_of_the_older_export(tmp_path: Path) -> None:
    trace = {
        "id": "t1",
        "timestamp": "2026-03-01 12:00:00.000000",
        "name": "forecaster",
        "session_id": "th-1",
        "tags": [],
        "metadata": {"a": 1},
        "input": json.dumps({"messages": ASKED[1:]}),
        "output": None,
    }
    rows = [
        {key: value for key, value in row.items() if key not in ("trace_name", "session_id", "tags")} for row in agent()
    ]
    (run,), _ = read(tmp_path, *rows, trace)
    assert (run.name, run.metadata["a"], run.scenario().input) == ("forecaster", 1, {"messages": ASKED[1:]})


def test_a_downloaded_trace_and_pages_of_the_api(tmp_path: Path) -> None:
    def camel(row: dict[str, Any]) -> dict[str, Any]:
        words = {key: key.split("_") for key in row}
        return {parts[0] + "".join(map(str.capitalize, parts[1:])): row[key] for key, parts in words.items()}

    observations, scores = list(map(camel, agent())), [camel(score("helpful", 1))]
    trace = {
        "id": "t1",
        "timestamp": "2026-03-01T12:00:00.000Z",
        "name": "forecaster",
        "input": {"messages": ASKED[1:]},
    }
    files = [
        [{**trace, "observations": observations, "scores": scores}],
        [{"trace": trace, "observations": observations, "scores": scores}],
        [{"data": observations[:2], "meta": {"cursor": "x"}}, {"data": observations[2:]}, {"data": scores}],
        [json.dumps([*observations, *scores], indent=1)],
    ]
    found = [read(tmp_path, *records) for records in files]
    for runs, left_out in found:
        assert (len(runs), left_out) == (1, [])
        assert essence(runs[0].demonstrations()[0].messages) == essence(CONVERSATION)
        assert (runs[0].metrics, runs[0].fingerprint) == ({"helpful": 1.0}, found[0][0][0].fingerprint)


@pytest.mark.parametrize("lost", [("trace",), ("observations",), ("trace", "observations")])
def test_a_downloaded_trace_without_ids_keeps_its_observations(tmp_path: Path, lost: tuple[str, ...]) -> None:
    rows = [{**row, "trace_id": None} for row in agent()]
    if "observations" in lost:
        rows = [{name: value for name, value in row.items() if name != "id"} for row in rows]
    trace = {"id": "t1", "timestamp": "2026-03-01T12:00:00Z", "input": {"messages": ASKED[1:]}}
    if "trace" in lost:
        del trace["id"]
    helpful = score("helpful", 1, trace_id=None)
    (run,), left_out = read(tmp_path, {**trace, "observations": rows, "scores": [helpful]})
    assert left_out == []
    assert essence(run.demonstrations()[0].messages) == essence(CONVERSATION)
    assert (run.metrics, run.id) == ({"helpful": 1.0}, None if "trace" in lost else "t1")


def test_an_observation_without_any_id_is_named(tmp_path: Path) -> None:
    alone = enriched("", "GENERATION", 0, ASKED, ANSWER, trace_id=None)
    runs, (left_out,) = read(tmp_path, alone)
    assert not runs
    assert left_out.startswith("observations that have neither an id nor a trace (1: line 1)")


@pytest.mark.parametrize(
    "message", [{"role": "assistant", "text": ANSWER["content"]}, {"type": "ai", "text": ANSWER["content"]}]
)
def test_the_text_of_a_message_is_its_content(tmp_path: Path, message: Any) -> None:
    (run,), left_out = read(tmp_path, enriched("o1", "GENERATION", 0, ASKED, message))
    assert left_out == []
    assert essence(run.demonstrations()[0].messages) == essence([*ASKED, ANSWER])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "blocks": [{"text": "Hi"}]},
        {"type": "ai", "blocks": [{"text": "Hi"}]},
        {"role": "assistant", "content": [{"type": "text"}]},
        {"role": "user", "body": "Hi"},
    ],
)
@pytest.mark.parametrize("place", ["in the prompt", "as the answer"])
def test_a_message_that_says_nothing_leaves_its_run_out(tmp_path: Path, message: Any, place: str) -> None:
    given, said = ([*ASKED, message], ANSWER) if place == "in the prompt" else (ASKED, message)
    runs, (left_out,) = read(tmp_path, enriched("o1", "GENERATION", 0, given, said))
    assert not runs
    assert left_out.startswith("with messages that have neither content nor calls of tools (1: line 1)")


def test_what_lies_beside_a_bad_item_is_read(tmp_path: Path) -> None:
    tone = score("tone", 0, data_type="CATEGORICAL")
    trace = {"id": "t1", "timestamp": "2026-03-01T12:00:00Z"}
    (run,), left_out = read(tmp_path, {**trace, "observations": agent(), "scores": [tone, tone, score("helpful", 0)]})
    assert run.metrics == {"helpful": 0.0}
    assert left_out[0].startswith("scores that are no numbers (2: lines 1, 1)")


def test_generations_of_the_openai_wrapper(tmp_path: Path) -> None:
    given = {"tools": [WEATHER], "messages": ASKED}
    (run,), _ = read(tmp_path, enriched("o1", "GENERATION", 0, given, ANSWER["content"]))
    assert essence(run.demonstrations()[0].messages) == essence([*ASKED, ANSWER])
    assert (run.calls[0].tools, run.scenario().input) == ([WEATHER], {"messages": ASKED})


@pytest.mark.parametrize("system", ["Use tools.", [{"text": "Use tools."}], ["Use tools."]])
def test_a_system_prompt_beside_the_messages(tmp_path: Path, system: Any) -> None:
    given = {"system": system, "messages": ASKED[1:]}
    (run,), _ = read(tmp_path, enriched("o1", "GENERATION", 0, given, ANSWER))
    assert run.calls[0].messages == ASKED


def test_the_result_of_a_tool_is_no_definition(tmp_path: Path) -> None:
    result = {**RAIN, "content": '{"parameters": 1}'}
    (run,), _ = read(tmp_path, enriched("o1", "GENERATION", 0, [*ASKED, CALLS, result], ANSWER))
    assert (run.calls[0].messages[-1], run.calls[0].tools) == (result, None)


def test_tool_definitions_of_the_export(tmp_path: Path) -> None:
    definitions = {
        "weather": json.dumps({"description": "d", "parameters": json.dumps(WEATHER["function"]["parameters"])})
    }
    (run,), _ = read(tmp_path, enriched("o1", "GENERATION", 0, ASKED, ANSWER, tool_definitions=definitions))
    assert run.calls[0].tools[0]["function"] == {**WEATHER["function"], "description": "d"}


def test_failed_observations(tmp_path: Path) -> None:
    failed = {"level": "ERROR", "status_message": "RateLimitError"}
    root = enriched("o1", "SPAN", 0, {"messages": ASKED}, "", **failed)
    (run,), _ = read(tmp_path, root, enriched("o2", "GENERATION", 1, ASKED, "", parent_observation_id="o1", **failed))
    assert (run.error, run.calls[0].error, run.demonstrations()) == ("RateLimitError", "RateLimitError", [])


def test_messages_that_are_texts_of_python(tmp_path: Path) -> None:
    (run,), left_out = read(
        tmp_path, enriched("o1", "GENERATION", 0, str(CONVERSATION[:4]), str(ANSWER), metadata={"a": 1})
    )
    assert left_out == []
    assert essence(run.demonstrations()[0].messages) == essence(CONVERSATION)
    pairs = str([("system", "Use tools."), ("human", "Weather in Oslo?")])
    (run,), _ = read(tmp_path, enriched("o1", "GENERATION", 0, pairs, ANSWER["content"]))
    assert run.calls[0].messages == ASKED


def test_what_a_failed_call_had_answered_is_not_imitated(tmp_path: Path) -> None:
    broken = enriched("o2", "GENERATION", 1, ASKED, "partial", parent_observation_id="o1", level="ERROR")
    (run,), _ = read(tmp_path, enriched("o1", "SPAN", 0, {"messages": ASKED}, "x"), broken)
    assert (run.error, run.calls[0].error, run.demonstrations()) == (None, "error", [])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("[SystemMessage(content='Use tools.'), HumanMessage(content='Hi')]", ANSWER),
        ("{'messages': [HumanMessage(content='Hi', additional_kwargs={})]}", ANSWER),
        (ASKED, "content='It rains.' additional_kwargs={} response_metadata={} id='run-1'"),
        (ASKED, "AIMessage(content='It rains.', additional_kwargs={})"),
        (ASKED, "ChatCompletion(id='c1', choices=[Choice(finish_reason='stop', index=0)])"),
        (ASKED, "<openai.types.chat.ChatCompletion object at 0x7f>"),
        (ASKED, '{"role": "assistant", "content": "It rai'),
        (ASKED, "content=[{'text': 'Hi', 'type': 'text'}] additional_kwargs={}"),
        (ASKED, "id='msg_1' content=[TextBlock(text='Hi')]"),
        (ASKED, "ChatResponse(message=ChatMessage(role='assistant'))"),
        (ASKED, "GenerateContentResponse(candidates=[Candidate(index=0)])"),
        (ASKED, "ParsedChatCompletion[Foo](id='x')"),
        (ASKED, "AgentRunResult(output='Hi')"),
        (ASKED, "Foo(a='x')"),
        (ASKED, "Foo(a='x)', b=[1, 2"),
        (ASKED, "{'docs': [app.Doc(text='It rains.')]}"),
        (ASKED, "<class 'app.Answer'>"),
        ("Question(text='Weather in Oslo?')", ANSWER),
        (ASKED, "<generator object stream at 0x7f>"),
        (ASKED, """b'{"role": "assistant"}'"""),
        (ASKED, '{"id": "chatcmpl-1", "content": "Hel'),
        ('[{"role": "user", "content": "Weather in Os', ANSWER),
        ("[{'role': 'user', 'content': 'Weather in Os", ANSWER),
        ("[{'role': 'user', 'content': " + "[" * 100_000, ANSWER),
    ],
)
def test_texts_of_objects_are_left_out_and_never_imitated(tmp_path: Path, given: Any, said: Any) -> None:
    runs, (left_out,) = read(tmp_path, enriched("o1", "GENERATION", 0, given, said))
    assert not runs
    assert left_out.startswith("with messages that are Python's text of objects, or were cut off (1: line 1)")


@pytest.mark.parametrize(
    "text",
    [
        "{'a': 1}",
        "{'id': 1}",
        "print(output=x)",
        "[1, 2]",
        "print(x=1)",
        "['a', 'b']",
        "Message sent.",
        "content is king",
        "{x}",
        "[a](b)",
        "f(c, a=Foo(b=1))",
        "Foo(a=1) makes a foo.",
        "Move('e4')",
        "x -> y",
    ],
)
def test_an_answer_that_only_looks_like_one_stays_as_it_was_said(tmp_path: Path, text: str) -> None:
    said = text if not text.startswith("[1") else json.dumps({"role": "assistant", "content": text})
    (run,), left_out = read(tmp_path, enriched("o1", "GENERATION", 0, ASKED, said))
    assert left_out == []
    assert (run.calls[0].answer or {})["content"] == text


def test_generations_of_amazon_bedrock(tmp_path: Path) -> None:
    use = {"toolUse": {"toolUseId": "call_1", "name": "weather", "input": {"city": "Oslo"}}}
    result = {"toolResult": {"toolUseId": "call_1", "content": [{"json": {"sky": "rain"}}]}}
    given = {
        "messages": [
            {"role": "user", "content": [{"text": "Weather in Oslo?"}]},
            {"role": "assistant", "content": [{"reasoningContent": {"reasoningText": {"text": "Hm."}}}, use]},
            {"role": "user", "content": [result, {"cachePoint": {"type": "default"}}]},
        ],
        "toolConfig": {
            "tools": [
                {
                    "toolSpec": {
                        "name": "weather",
                        "description": WEATHER["function"]["description"],
                        "inputSchema": {"json": WEATHER["function"]["parameters"]},
                    }
                }
            ]
        },
    }
    said = {
        "output": {"message": {"role": "assistant", "content": [{"text": ANSWER["content"]}]}},
        "stopReason": "end_turn",
    }
    (run,), left_out = read(tmp_path, enriched("o1", "GENERATION", 0, given, said))
    assert left_out == []
    (demonstration,) = run.demonstrations()
    rain = {**RAIN, "content": '{"sky": "rain"}'}
    assert essence(demonstration.messages) == essence([ASKED[1], CALLS, rain, ANSWER])
    assert demonstration.tools == [WEATHER]


@pytest.mark.parametrize(
    "said", [{"generations": [], "llm_output": None}, {"choices": []}, {"candidates": [], "promptFeedback": {}}]
)
def test_a_response_without_an_answer_is_none(tmp_path: Path, said: Any) -> None:
    (run,), _ = read(tmp_path, enriched("o1", "GENERATION", 0, ASKED, said))
    assert (run.calls[0].answer, run.demonstrations()) == (None, [])


@pytest.mark.parametrize(
    "said",
    [
        {"results": [{"outputText": "It rains."}], "usage": {}},
        {"error": {"message": "no"}},
        {"object": "response", "output": []},
        {"response": "Hi", "done": True},
        {"completion": "Hi"},
        {"text": "Hi"},
        {"generated_text": "Hi"},
    ],
)
def test_a_response_of_an_unknown_form_is_no_answer(tmp_path: Path, said: Any) -> None:
    runs, (left_out,) = read(tmp_path, enriched("o1", "GENERATION", 0, ASKED, said))
    assert not runs
    assert left_out.startswith("with answers of an unknown form (1: line 1)")


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([score("helpful", 1)], "scores of traces that are not in the file (1: line 1); export the observations"),
        ([score("helpful", 1, trace_id=None)], "scores of sessions or datasets"),
        (
            [enriched("o1", "SPAN", 0, "", "")],
            "traces without a model call and without an input (1: line 1); export the field",
        ),
        ([{"id": "x"}], "records that are no observation, trace or score"),
        (["[1, 2]"], "records that are none of langfuse"),
    ],
)
def test_what_is_left_out_is_named(tmp_path: Path, records: list[Any], why: str) -> None:
    runs, left_out = read(tmp_path, *records)
    assert not runs
    assert left_out[0].startswith(why)


def test_scores_that_are_no_numbers_are_no_rewards(tmp_path: Path) -> None:
    others = [
        score("tone", 0, data_type="CATEGORICAL", string_value="kind"),
        score("said", 0, data_type="TEXT", string_value="good"),
        score("right", 1, data_type="BOOLEAN"),
    ]
    (run,), left_out = read(tmp_path, *agent(), *others)
    assert run.metrics == {"right": 1.0}
    assert left_out == ["scores that are no numbers (2: lines 5, 6); categories, texts and corrections are not rewards"]


def test_import_counts(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    records = [*agent(), score("helpful", 1), score("note", "nice", data_type="CATEGORICAL"), '{"id": "o9", "tra']
    numbers, row = counted("langfuse", "observations and scores", tmp_path, *records)
    assert numbers == (1, 1, 1, 1)
    record_property(COUNTS, row)
