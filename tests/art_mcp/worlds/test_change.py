"""What a run changed, beside what it should have changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from art_mcp.worlds.change import Change, compare, merge_changes
from art_mcp.worlds.observers.files import FileObserver
from art_mcp.worlds.observers.observer import render_value
from art_mcp.worlds.state import StateReader, changes

MADE = Change(where="/world/repo", what="branch x", after="abc")
MOVED = Change(where="/world/repo", what="HEAD", before="main", after="x")
GONE = Change(where="/world/a.txt", what="content", before="a")


def test_the_same_changes_agree_whatever_their_order() -> None:
    same = compare([MADE, MOVED], [MOVED, MADE])
    assert (same.degree, same.differences) == (1.0, [])
    assert compare([], []).degree == 1.0


def test_each_difference_is_said() -> None:
    found = compare([MADE, MOVED], [MOVED.model_copy(update={"after": "y"}), GONE])
    assert found.degree == 0.0
    assert found.differences == [
        "should have changed and did not: /world/repo: branch x is new: abc",
        "/world/repo: HEAD should now be x, but is y",
        "should not have changed: /world/a.txt: content is gone; it was a",
    ]
    assert compare([MADE], [MADE, GONE]).degree == 0.5
    assert compare([], [GONE]).degree == 0.0
    many = [Change(where="/world/a", what=str(n), after="x") for n in range(20)]
    assert compare([], many).differences[-1] == "and 12 more differences"


def test_what_varies_must_change_and_may_be_anything() -> None:
    time = Change(where="/world/shop.db", what="users[id=3].made", after="10:00")
    later = time.model_copy(update={"after": "10:01"})
    both = merge_changes([MADE, time], [MADE, later])
    assert both is not None
    assert [change.varies for change in both] == [False, True]
    assert compare(both, [MADE, time.model_copy(update={"after": "12:00"})]).degree == 1.0
    assert compare(both, [MADE]).degree == 0.5
    gone = Change(where=time.where, what=time.what, before="1", after=None)
    assert compare([time.model_copy(update={"varies": True})], [gone]).degree == 0.0


def test_executions_that_change_different_things_agree_on_nothing() -> None:
    assert merge_changes([MADE], [MOVED]) is None
    assert merge_changes([MADE], []) is None
    assert merge_changes([GONE], [GONE.model_copy(update={"after": "b"})]) is None
    assert merge_changes([], []) == []


def test_a_backup_with_the_time_in_its_name_is_expected_beside_a_change() -> None:
    done = Change(where="/world/todo/todo.txt", what="content", before="tea", after="x tea")
    backups = [Change(where=f"/world/todo/backup-{time}.txt", what="content", after="tea") for time in ("1000", "2012")]
    both = merge_changes([backups[0], done], [backups[1], done])
    assert both is not None
    later = Change(where="/world/todo/backup-3317.txt", what="content", after="tea")
    assert compare(both, [later, done]).degree == 1.0
    assert compare(both, [done]).degree == 0.5
    assert compare(both, [later.model_copy(update={"after": "coffee"}), done]).degree < 1.0
    assert merge_changes(backups[:1], backups[1:]) is None, "nothing else was changed"


def test_a_row_with_a_random_id_is_expected_with_its_values() -> None:
    def rows(*texts: str) -> list[Change]:
        ids = [str(uuid4()) for _ in texts]
        values = [
            (own, name, value)
            for own, text in zip(ids, texts, strict=True)
            for name, value in (("id", own), ("text", text))
        ]
        return [
            Change(where="/world/todo.db", what=f'todos[id="{own}"].{name}', after=f'"{value}"')
            for own, name, value in values
        ]

    both = merge_changes(rows("buy tea", "sell 2 cups"), rows("buy tea", "sell 2 cups"))
    assert both is not None
    assert compare(both, rows("sell 2 cups", "buy tea")).degree == 1.0
    assert compare(both, rows("buy tea", "sell 3 cups")).degree == 0.75
    assert compare(both, rows("buy tea")).degree == 0.5
    assert merge_changes(rows("buy tea"), rows("buy milk")) is None


def test_a_document_with_a_time_is_expected_with_the_rest_of_it() -> None:
    def document(name: str, time: str, progress: int = 5, before: str | None = None) -> Change:
        after = f'{{"name": "{name}", "progress": {progress}, "updated": "2026-11-28 {time}"}}'
        return Change(where="/world/a.db", what="projects[id=1].data", before=before, after=after)

    both = merge_changes([document("Roof", "09:00:01.5")], [document("Roof", "09:00:02.7")])
    assert both is not None
    assert compare(both, [document("Roof", "21:30:00.1")]).degree == 1.0
    assert compare(both, [document("Roof", "21:30:00.1", progress=7)]).degree == 0.0
    assert compare(both, [document("Door", "21:30:00.1")]).degree == 0.0
    old = document("Roof", "08:00:00.0").after
    times = [document("Roof", "09:00:01.5", before=old)], [document("Roof", "09:00:02.7", before=old)]
    assert merge_changes(*times) is None, "nothing but a time was changed"


def test_a_text_that_names_days_may_be_any_other() -> None:
    first, second = (
        Change(where="/world/log.md", what="content", before="", after=f"Sat Nov 28 09:00:0{second}: done")
        for second in (1, 2)
    )
    both = merge_changes([first], [second])
    assert both is not None
    assert compare(both, [first.model_copy(update={"after": "Sun Nov 29 10:00:00: done"})]).degree == 1.0


def test_a_row_with_a_random_id_may_be_one_document() -> None:
    def row(title: str) -> Change:
        own = uuid4()
        return Change(where="/world/a.db", what=f"todos[id={own}].data", after=f'{{"id": "{own}", "title": "{title}"}}')

    both = merge_changes([row("buy tea")], [row("buy tea")])
    assert both is not None
    assert compare(both, [row("buy tea")]).degree == 1.0
    assert compare(both, [row("buy milk")]).degree == 0.0


def test_of_a_file_that_is_no_text_any_other_content_is_expected() -> None:
    book = Change(
        where="/world/b.xlsx", what="content", before="99 bytes, sha256 aaaaaaaa", after="7 bytes, sha256 bbbbbbbb"
    )
    both = merge_changes([book], [book.model_copy(update={"after": "8 bytes, sha256 cccccccc"})])
    assert both is not None
    assert compare(both, [book.model_copy(update={"after": "1,007 bytes, sha256 dddddddd"})]).degree == 1.0


def made_task(name: str, own: str, second: int) -> dict[str, Any]:
    return {"id": own, "name": name, "text": "x" * 60, "created_at": f"2026-11-28T09:00:{second:02}.5Z"}


def written(*, jsonl: bool, tasks: Sequence[Mapping[str, Any]]) -> str:
    ordered = sorted(tasks, key=lambda task: str(task["id"]))
    return "".join(f"{json.dumps(task)}\n" for task in ordered) if jsonl else json.dumps(tasks, indent=1)


def edited(tmp_path: Path, before: str, after: str) -> list[Change]:
    """What the world says of a file that was written."""
    states = []
    for text in (before, after):
        (tmp_path / "tasks").write_text(text)
        states.append(StateReader(tmp_path, tmp_path, [FileObserver()], render_value).state())
    return changes(*states)


@pytest.mark.parametrize("jsonl", [True, False])
def test_of_a_long_text_only_times_and_ids_can_be_others(tmp_path: Path, jsonl: bool) -> None:
    start = [made_task("Paint the shed", own, 0) for own in ("2d0wnrnm", "4xafrxl6", "6kl2x7tn", "xi15di1r")]
    before = written(jsonl=jsonl, tasks=start)

    def run(*tasks: Mapping[str, Any]) -> list[Change]:
        return edited(tmp_path, before, written(jsonl=jsonl, tasks=[*start, *tasks]))

    both = merge_changes(run(made_task("Buy tea", "tujf4qmc", 1)), run(made_task("Buy tea", "0b9wzk31", 2)))
    assert both is not None
    both = [Change.model_validate_json(change.model_dump_json()) for change in both]
    assert compare(both, run(made_task("Buy tea", "5hgkqpwo", 44))).degree == 1.0
    assert compare(both, run(made_task("Buy tin", "5hgkqpwo", 44))).degree == 0.0
    assert compare(both, run()).degree == 0.0
    assert compare(both, run(*[made_task("Buy tea", own, 44) for own in "ab"])).degree == 0.0
    assert compare(both, edited(tmp_path, before, "rubbish")).degree == 0.0
    assert compare(both, edited(tmp_path, before, before.replace("shed", "barn", 1))).degree == 0.0
    other = written(jsonl=jsonl, tasks=[*start[1:], made_task("Buy tea", "5hgkqpwo", 44)])
    assert compare(both, edited(tmp_path, before, other)).degree == 0.0, "another task is gone"


def test_a_long_text_in_which_nobody_knows_what_varies_is_no_task(tmp_path: Path) -> None:
    def run(number: int) -> list[Change]:
        return edited(tmp_path, "x" * 400, f"{'x' * 400}\n{'a, ' * number}")

    assert merge_changes(run(3), run(4)) is None
    beside = merge_changes([*run(3), MADE], [*run(4), MADE])
    assert beside is not None
    assert compare(beside, [*run(5), MADE]).degree == 1.0
    assert compare(beside, run(5)).degree == 0.5
    times = [edited(tmp_path, "shed " * 80, f"{'shed ' * 80}09:00:0{second}") for second in (1, 2)]
    assert merge_changes(*times) is not None, "a time that was not there"
    clock = [edited(tmp_path, f"{'shed ' * 80}09:00:00", f"{'shed ' * 80}09:00:0{second}") for second in (1, 2)]
    assert merge_changes(*clock) is None, "nothing but a time was changed"
    rows = [[Change(where="/world/a.db", what="rows of t", after=f"9,001 rows, sha256 {n}{'a' * 9}")] for n in (1, 2)]
    assert merge_changes(*rows) is None, "other values in any of many rows"


def test_a_long_text_that_was_saved_with_its_digest_alone_is_compared() -> None:
    saved = Change.model_validate(
        {
            "where": "/world/a",
            "what": "content",
            "after": "x … (1,717 characters, sha256 aaaaaaaa)",
            "varies": True,
        }
    )
    later = saved.model_copy(update={"after": "x … (1,718 characters, sha256 bbbbbbbb)", "varies": False})
    assert compare([saved], [later]).degree == 1.0


def test_a_short_text_with_a_random_id_is_expected_with_the_rest_of_it() -> None:
    def run(name: str, own: str) -> list[Change]:
        return [Change(where="/world/a", what="content", after=f'{{"id": "{own}", "name": "{name}"}}')]

    both = merge_changes(run("Buy tea", "tujf4qmc"), run("Buy tea", "0b9wzk31"))
    assert both is not None
    assert compare(both, run("Buy tea", "xi15di1r")).degree == 1.0
    assert compare(both, run("Buy tin", "xi15di1r")).degree == 0.0
