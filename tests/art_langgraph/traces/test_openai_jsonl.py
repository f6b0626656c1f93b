"""OpenAI's files: fine-tuning, preferences, batches of both APIs, stored completions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionStoreMessage

from art_langgraph.traces import ForeignRun, read_runs
from art_langgraph.traces.problems import Skips, Unreadable
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


def read(path: Path, *records: Any) -> tuple[list[ForeignRun], list[str]]:
    skips = Skips()
    runs = list(read_runs("openai-jsonl", write(path / "x.jsonl", *records), skips=skips))
    return runs, list(skips)


def completion(id: str = "chatcmpl-1", **more: Any) -> dict[str, Any]:
    body = {
        "id": id,
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "gpt-4o-mini",
        "choices": [{"index": 0, "message": {**ANSWER, "refusal": None}, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15},
        **more,
    }
    return ChatCompletion.model_validate(body).model_dump(mode="json")


def test_a_line_of_a_fine_tuning_file_is_one_demonstration_of_all_its_answers(tmp_path: Path) -> None:
    (run,), left_out = read(tmp_path, {"messages": CONVERSATION, "tools": [WEATHER], "parallel_tool_calls": False})
    (demonstration,) = run.demonstrations()
    assert essence(demonstration.messages) == essence(CONVERSATION)
    assert (demonstration.tools, demonstration.answers("all"), left_out) == ([WEATHER], [2, 4], [])
    assert run.scenario().input == {"messages": ASKED}
    assert run.scenario(system=False).input == {"messages": ASKED[1:]}


def test_weights_stay(tmp_path: Path) -> None:
    chat = [*ASKED, {**ANSWER, "weight": 0}, {"role": "user", "content": "And?"}, {**ANSWER, "weight": 1}]
    (run,), _ = read(tmp_path, {"messages": chat})
    (demonstration,) = run.demonstrations()
    assert demonstration.answers("all") == [4]
    assert run.scenario().input["messages"][-1] == {"role": "user", "content": "And?"}


def test_the_preferred_answer_is_imitated(tmp_path: Path) -> None:
    line = {
        "input": {"messages": ASKED, "tools": [], "parallel_tool_calls": True},
        "preferred_output": [ANSWER],
        "non_preferred_output": [{"role": "assistant", "content": "No idea."}],
    }
    (run,), _ = read(tmp_path, line)
    assert essence(run.demonstrations()[0].messages) == essence([*ASKED, ANSWER])
    assert abs(run.trajectory(None).started - time.time()) < 600, "else `prune --keep-days` deletes it"
    run.scores["much"].append(5e6)
    with pytest.raises(Unreadable, match="feedback cannot be a reward"):
        run.reward(None)


def test_requests_and_answers_of_a_batch_are_joined(tmp_path: Path) -> None:
    asked = [
        {
            "custom_id": f"request-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "gpt-4o-mini", "messages": [*ASKED, CALLS, RAIN], "tools": [WEATHER]},
        }
        for number in range(3)
    ]
    answered = [
        {
            "id": "batch_req_1",
            "custom_id": "request-1",
            "response": {"status_code": 200, "request_id": "r", "body": completion()},
            "error": None,
        },
        {
            "id": "batch_req_2",
            "custom_id": "request-2",
            "response": None,
            "error": {"code": "batch_expired", "message": "This request could not be executed in time."},
        },
    ]
    (waiting, done, failed), _ = read(tmp_path, *asked, *answered)
    assert (done.calls[0].model, done.start_time, done.id) == ("gpt-4o-mini", 1_700_000_000, "chatcmpl-1")
    demonstration = done.demonstrations()[0]
    assert (demonstration.answers("all"), demonstration.messages[2]["weight"]) == ([4], 0), "history is context"
    assert (waiting.calls[0].answer, failed.error) == (None, "This request could not be executed in time.")
    (_, left_out) = read(tmp_path, answered[0])
    assert left_out == [
        "answers whose request is not in the file (1: line 1); give the batch's input file, or the completion's "
        "messages, as another FILE"
    ]


def test_a_batch_of_responses(tmp_path: Path) -> None:
    tool = {"type": "function", "name": "weather", "parameters": WEATHER["function"]["parameters"]}
    asked = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/responses",
        "body": {
            "model": "m",
            "instructions": "Use tools.",
            "tools": [tool],
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Weather in Oslo?"}]},
                {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Oslo"}'},
                {"type": "function_call_output", "call_id": "call_1", "output": "rain, 7 degrees"},
            ],
        },
    }
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER["content"]}]}
    body = {"id": "resp_1", "object": "response", "created_at": 1_700_000_000, "model": "m", "output": [said]}
    answered = {"id": "b", "custom_id": "a", "response": {"status_code": 200, "body": body}, "error": None}
    (run,), left_out = read(tmp_path, asked, answered)
    assert essence(run.demonstrations()[0].messages) == essence(CONVERSATION)
    assert run.calls[0].tools[0]["function"]["name"] == "weather"
    assert left_out == []


def test_stored_completions_and_their_messages(tmp_path: Path) -> None:
    stored = [
        ChatCompletionStoreMessage.model_construct(
            id=f"chatcmpl-1-{number}", content_parts=None, **message
        ).model_dump()
        for number, message in enumerate(ASKED)
    ]
    page = {
        "object": "list",
        "data": stored,
        "first_id": stored[0]["id"],
        "last_id": stored[-1]["id"],
        "has_more": False,
    }
    inside = completion("chatcmpl-2", messages=ASKED)
    runs, left_out = read(tmp_path, completion(metadata={"user": "u1"}), page, inside, completion("chatcmpl-3"))
    for run in runs:
        assert essence(run.demonstrations()[0].messages) == essence([*ASKED, ANSWER])
    assert (len(runs), runs[0].metadata) == (2, {"user": "u1"})
    assert left_out[0].startswith("answers whose request is not in the file (1: line 4)")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"prompt": "2+2=", "completion": "4"}, "prompts with text completions"),
        ({"question": "?"}, "lines that are no conversation"),
        ({"messages": 3}, "with messages of an unknown form"),
        ([1, 2], "records that are none of openai-jsonl"),
        (3, "records that are none of openai-jsonl"),
    ],
)
def test_lines_of_another_kind_are_left_out_with_the_reason(tmp_path: Path, line: Any, why: str) -> None:
    runs, left_out = read(tmp_path, {"messages": CONVERSATION}, line)
    assert len(runs) == 1
    assert left_out[0].startswith(why), left_out


def test_the_same_line_again_is_one_run(tmp_path: Path) -> None:
    (run,), _ = read(tmp_path, {"messages": CONVERSATION}, {"messages": CONVERSATION})
    assert run.repeat_lines == [2]


def test_import_counts(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    asked = [{"role": "user", "content": f"Weather in {city}?"} for city in ("Oslo", "Rome", "Kyiv")]
    forms: dict[str, tuple[tuple[int, ...], list[Any]]] = {
        "fine-tuning": ((3, 3, 3, 0), [{"messages": [one, ANSWER]} for one in asked]),
        "batch": (
            (3, 3, 2, 0),
            [
                *({"custom_id": str(at), "method": "POST", "url": "/v1/chat/completions",
                   "body": {"model": "gpt-4o-mini", "messages": [one]}} for at, one in enumerate(asked)),
                *({"id": f"b{at}", "custom_id": str(at), "error": None,
                   "response": {"status_code": 200, "body": completion(f"chatcmpl-{at}")}} for at in range(2)),
            ],
        ),
        "stored completions": ((2, 2, 2, 0), [completion(f"chatcmpl-{at}", messages=[asked[at]]) for at in range(2)]),
    }  # fmt: skip
    for what, (numbers, records) in forms.items():
        (tmp_path / what).mkdir()
        found, row = counted("openai-jsonl", what, tmp_path / what, *records, "not JSON")
        assert found == numbers, what
        record_property(COUNTS, row)


def test_batches_with_the_same_custom_ids_are_not_paired(tmp_path: Path) -> None:
    def batch(number: int, *names: str) -> list[Any]:
        body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": f"question {number}"}]}
        answer = {"status_code": 200, "body": completion(f"chatcmpl-{number}")}
        asked = [{"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body} for name in names]
        return asked + [{"id": f"b{number}-{name}", "custom_id": name, "response": answer} for name in names]

    runs, left_out = read(tmp_path, *batch(1, "request-1"), *batch(2, "request-1", "request-2"))
    assert [run.id for run in runs] == ["chatcmpl-2"]
    assert left_out == ["custom_ids with more than one request or answer (1: line 1); import each batch alone"]
    assert len(read(tmp_path, *batch(1, "request-1"), *batch(1, "request-1"))[0]) == 1, "the same file twice"
