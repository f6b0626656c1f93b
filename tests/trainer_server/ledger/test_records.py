"""What a rollout did, from its completions: tool calls find their results, whatever became of the history."""

from __future__ import annotations

import json
from typing import Any

from tests.support.homes.ledger_rows import row
from trainer_server.ledger.records import record_of, tool_calls
from trainer_server.wire import Completion, CompletionStatus, RolloutSpec

USER = {"role": "user", "content": "hi"}


def call(name: str, call_id: str = "c", **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]}


def result(text: Any, call_id: str = "c") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def answered(number: int, message: dict[str, Any] | None, *messages: dict[str, Any], **changes: Any) -> Completion:
    changes = {"created": float(number), "message": message, "request": {"messages": list(messages)}, **changes}
    return row(f"c{number}").model_copy(update=changes)


def test_an_id_that_is_used_twice_has_two_results() -> None:
    first, second = call("look", x=1), call("look", x=2)
    rows = [
        answered(1, first, USER),
        answered(2, second, USER, first, result("one")),
        answered(3, {"role": "assistant", "content": "x"}, USER, first, result("one"), second, result("two")),
    ]
    assert [(found.arguments, found.result) for found in tool_calls(rows)] == [({"x": 1}, "one"), ({"x": 2}, "two")]


def test_a_result_is_found_in_a_history_that_was_rewritten() -> None:
    made = call("look", "other", x=1)
    rows = [
        answered(1, made, {"role": "system", "content": "s"}, USER),
        answered(2, None, {"role": "user", "content": "something else"}),
        answered(
            3, None, USER, made, result([{"type": "text", "text": "fo"}, {"type": "text", "text": "und"}], "other")
        ),
    ]
    assert [found.result for found in tool_calls(rows)] == ["found"]


def test_results_are_found_where_a_program_names_calls_anew() -> None:
    """Agno numbers the calls of a conversation. The same call of another conversation has no result of this one."""
    first, second = call("look", "a", x=1), call("look", "b", x=1)
    renamed = [call("look", "0", x=1), result("one", "0"), call("look", "1", x=1), result("two", "1")]
    last = answered(4, {"role": "assistant", "content": "done"}, USER, *renamed)
    rows = [answered(1, first, USER), answered(2, second, USER, *renamed[:2]), last]
    assert [found.result for found in tool_calls(rows)] == ["one", "two"]
    elsewhere = answered(1, call("look", "c", x=1), {"role": "user", "content": "another question"})
    other = answered(1, call("look", "d", x=2), USER)
    assert [found.result for found in tool_calls([elsewhere, other, last])] == [None, None]


def test_a_call_without_a_result_and_arguments_that_are_no_object_are_kept() -> None:
    made = call("submit")
    made["tool_calls"][0]["function"]["arguments"] = "{broken"
    assert [(found.tool, found.arguments, found.result) for found in tool_calls([answered(1, made, USER)])] == [
        ("submit", {"input": "{broken"}, None)
    ]
    assert tool_calls([answered(1, made, USER, status=CompletionStatus.aborted)]) == []


def test_messages_are_not_read_again_for_each_answer() -> None:
    """Where no results come, later requests have nothing to find; each has the whole conversation."""
    reads = 0

    class Message(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal reads
            reads += 1
            return super().get(key, default)

    history = [Message(USER) for _ in range(50)]
    rows = [answered(number, call("look", f"c{number}"), *history) for number in range(40)]
    assert [found.result for found in tool_calls(rows)] == [None] * 40
    assert reads <= 5 * 40 * 50


def test_choices_are_one_call_and_what_broke_off_has_an_error() -> None:
    rows = [
        answered(1, None, USER, id="a", policy="agent", version=2, model="agent@2"),
        answered(1, None, USER, id="a.1", policy="agent", version=2, model="agent@2"),
        answered(3, None, USER, id="b", policy="agent", version=1, status=CompletionStatus.aborted, model=None),
    ]
    record = record_of("r", rows, RolloutSpec(), [])
    assert (record.calls, record.versions, record.seconds) == (2, {"agent": [1, 2]}, 2.0)
    assert [(one.id, one.model, str(one.error)[:7]) for one in record.completions] == [
        ("a", "agent@2", "None"),
        ("a.1", "agent@2", "None"),
        ("b", "agent", "aborted"),
    ]


def test_the_prompt_of_a_text_completion_is_a_message() -> None:
    rows = [answered(1, {"role": "assistant", "content": "b"}, request={"prompt": "a"})]
    record = record_of("r", rows, RolloutSpec(), [])
    assert record.completions[0].messages == [{"role": "user", "content": "a"}]
    assert record.scenario.input == {"messages": [{"role": "user", "content": "a"}]}
