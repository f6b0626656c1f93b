"""The words of a task, in the forms that graphs take."""

from __future__ import annotations

from typing import Any

import pytest

from trainer_server.dashboard.views.compare import _compare_moves
from trainer_server.dashboard.words import task_messages, task_words


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("What time\n is it?", "What time is it?"),
        ({"messages": "say a"}, "say a"),
        ({"messages": [["user", "say a"]]}, "say a"),
        ({"messages": [["system", "Be kind."], ["user", "say a"], ["assistant", "a"]]}, "say a"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "say a"}]}]}, "say a"),
        ({"messages": [{"type": "human", "content": "say a"}]}, "say a"),
        ({"messages": [{"lc": 1, "kwargs": {"type": "human", "content": "say a"}}]}, "say a"),
        ({"board": "x o", "question": "whose turn?"}, "whose turn?"),
        ({"city": "Oslo"}, "Oslo"),
        ({"city": "Oslo", "day": 3}, "city: Oslo, day: 3"),
        ({"id": "q7", "task": "say a"}, "say a"),
        (
            {"messages": [["user", "say a"], {"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]}]},
            "say a",
        ),
        ({"messages": [3]}, '{"messages": [3]}'),
        ({"a": 1}, '{"a": 1}'),
        (7, "7"),
        (None, ""),
    ],
)
def test_the_words_of_a_task(task: Any, words: str) -> None:
    assert task_words(task) == words


def test_long_tasks_are_cut() -> None:
    assert len(task_words("a b " * 100_000)) <= 2_000


def test_messages_of_which_one_is_none_are_shown_as_they_are() -> None:
    assert task_messages({"messages": [["user", "a"], 3]}) == []
    assert task_messages({"messages": [["user", "a"]]}) == [("user", "a")]


def test_a_group_marks_what_is_not_in_the_first_run() -> None:
    first = [("model", "it is warm"), ("look", "20 C")]
    marked = _compare_moves(first, [("model", "it is cold"), ("look", "20 C"), ("model", "done")])
    assert [move["same"] for move in marked] == [False, True, False]
    assert [[piece.text for piece in move["pieces"] if piece.kind == "right"] for move in marked] == [
        ["cold"],
        [],
        ["done"],
    ]
