"""Files that are created by one process of several, on file systems with hard links and without; and files that are
parsed once."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trainer_server.process.files import FileReader, create_exclusive, may_pass, no_space, write_atomic


def link_fails(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def link(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("links", [None, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_one_of_many_creates_a_file_and_its_text_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: int | None
) -> None:
    if links is not None:
        link_fails(monkeypatch, links)
    path = tmp_path / "one" / "started.json"
    texts = [f"text of {number}" for number in range(8)]

    def create(text: str) -> tuple[bool, str]:
        return create_exclusive(path, text), path.read_text()

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(create, texts))
    (winner,) = [text for text, (mine, _) in zip(texts, found, strict=True) if mine]
    assert {seen for _, seen in found} == {winner}
    assert [one.name for one in path.parent.iterdir()] == ["started.json"]


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link_fails(monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        create_exclusive(tmp_path / "started.json", "text")
    assert list(tmp_path.iterdir()) == []


def test_files_are_for_their_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "replaced.json", "{}")
    create_exclusive(tmp_path / "linked.json", "{}")
    link_fails(monkeypatch, errno.EPERM)
    create_exclusive(tmp_path / "in_place.json", "{}")
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_full_disk_is_told_from_other_errors() -> None:
    assert [no_space(OSError(number, "")) for number in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE)] == [
        True,
        True,
        False,
    ]
    assert [may_pass(OSError(number, "")) for number in (errno.ENOSPC, errno.EMFILE)] == [True, True]
    assert not any(may_pass(OSError(number, "")) for number in (errno.ENOENT, errno.EACCES, errno.EROFS, errno.EIO))
    assert not may_pass(OSError("no number"))


def test_a_file_is_parsed_again_when_it_has_changed(tmp_path: Path) -> None:
    path, reader = tmp_path / "number", FileReader()
    parsed: list[str] = []

    def parse(text: str) -> int:
        parsed.append(text)
        return int(text)

    with pytest.raises(FileNotFoundError):
        reader.read(path, parse)
    for text in ("1", "2", "two"):
        write_atomic(path, text)
        for _ in range(3):
            if text == "two":
                with pytest.raises(ValueError, match="invalid literal"):
                    reader.read(path, parse)
            else:
                assert reader.read(path, parse) == int(text)
    assert parsed == ["1", "2", "two"]
    path.unlink()
    with pytest.raises(FileNotFoundError):
        reader.read(path / "below", parse)
    path.mkdir()
    with pytest.raises(ValueError, match="directory"):
        reader.read(path, parse)


def test_files_of_a_deleted_directory_are_forgotten(tmp_path: Path) -> None:
    reader = FileReader()
    for name in ("kept", "deleted"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "number").write_text("1")
        reader.read(tmp_path / name / "number", int)
    reader.forget(tmp_path / "deleted")
    assert [path.parent.name for path in reader._cache] == ["kept"]


def test_a_pipe_is_a_damaged_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "policy.json")
    with pytest.raises(ValueError, match="it is no file"):
        FileReader().read(tmp_path / "policy.json", str)
