"""Copies of trees, byte by byte or by shared blocks."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from art_mcp.worlds.copying import Copier
from art_mcp.worlds.files import remove_tree
from tests.support.mcp.originals import digest


def tree(path: Path) -> Path:
    (path / "sub" / "empty").mkdir(parents=True)
    (path / "a.txt").write_text("a")
    (path / "sub" / "run").write_text("#!/bin/sh")
    os.chmod(path / "sub" / "run", 0o755)
    os.symlink("a.txt", path / "link")
    os.symlink("nowhere", path / "broken")
    for entry in (path / "a.txt", path / "sub"):
        os.utime(entry, ns=(1, 10**18))
    return path


def relative(path: Path) -> list[object]:
    return [(os.path.relpath(name, path), *seen) for name, seen in digest(path).items()]


def test_a_copy_has_the_contents_modes_and_times_of_its_source(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    copier = Copier()
    copier.tree(source, tmp_path / "copy")
    assert relative(tmp_path / "copy") == relative(source)
    assert (copier.files, copier.bytes) == (2, 10)


def test_where_blocks_cannot_be_shared_bytes_are_copied_and_it_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def refuse(*words: object) -> int:
        tried.append(words)
        raise OSError(95, "not supported")

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    copier = Copier()
    copier.tree(tree(tmp_path / "source"), tmp_path / "copy")
    assert (len(tried), copier.reflinks, copier.shared_count) == (1, False, 0)
    assert (tmp_path / "copy" / "sub" / "run").read_text() == "#!/bin/sh"


def test_pipes_are_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    os.mkfifo(tmp_path / "source" / "pipe")
    copier = Copier()
    copier.tree(tmp_path / "source", tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []
    assert copier.skipped_paths == [str(tmp_path / "source" / "pipe")]


def test_what_may_not_be_written_is_removed_too(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    for directory in (source / "sub" / "empty", source / "sub", source):
        os.chmod(directory, 0o500)
    remove_tree(source)
    assert not source.exists()
    remove_tree(source)
