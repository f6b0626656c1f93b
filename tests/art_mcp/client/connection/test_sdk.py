"""Command lines of servers."""

from __future__ import annotations

import sys

import pytest

from art_mcp.client.connection.sdk import words_of


@pytest.mark.parametrize(
    ("platform", "command", "words"),
    [
        ("linux", r"python 'my server.py' --at a\ b", ["python", "my server.py", "--at", "a b"]),
        ("darwin", "npx -y server # 1", ["npx", "-y", "server", "#", "1"]),
        ("win32", r'C:\Python\python.exe "C:\my files\server.py" --n 1', None),
    ],
)
def test_a_command_line_is_read_as_the_shell_of_the_system_does(
    monkeypatch: pytest.MonkeyPatch, platform: str, command: str, words: list[str] | None
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert words_of(command) == (words or [r"C:\Python\python.exe", r"C:\my files\server.py", "--n", "1"])


def test_an_open_quotation_is_an_error() -> None:
    with pytest.raises(ValueError, match="No closing quotation"):
        words_of("python 'server.py")
