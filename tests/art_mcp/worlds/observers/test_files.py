"""Files by their content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from art_mcp.worlds.observers import files
from art_mcp.worlds.observers.files import FileObserver
from art_mcp.worlds.observers.observer import render_value


def seen(path: Path) -> dict[str, str]:
    return dict(FileObserver().observe(path, path, render_value))


def test_short_texts_are_values_and_other_contents_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("two\nlines")
    assert seen(file) == {"content": "two\nlines"}
    file.write_bytes(b"")
    assert seen(file) == {"content": "empty"}
    file.write_bytes(b"\0\xff")
    assert seen(file)["content"].startswith("2 bytes, sha256 ")
    file.write_text("x" * 1000)
    long = seen(file)["content"]
    assert long.startswith("x" * 150 + " … (1,000 characters, sha256 ")
    file.write_text("x" * 999 + "y")
    assert seen(file)["content"] != long
    monkeypatch.setattr(files, "LARGE", 10)
    assert seen(file)["content"].startswith("1,000 bytes, sha256 ")


def test_whether_a_file_can_be_executed_counts(tmp_path: Path) -> None:
    file = tmp_path / "run"
    file.write_text("x")
    os.chmod(file, 0o755)
    assert seen(file) == {"content": "x", "mode": "executable"}
