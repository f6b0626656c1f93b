"""What a run changed, beside what it should have changed."""

from __future__ import annotations

from uuid import uuid4

from art_mcp.worlds.change import Change, compare, merge_changes

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
