"""Command lines of servers."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from art_mcp import connect
from art_mcp.client.connection.sdk import words_of
from trainer_server.wire import MCPError


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


async def test_a_line_that_is_no_message_is_named_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("print('hello ' * 100)")
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("mcp.client.stdio")
    logger.addHandler(handler)
    try:
        with pytest.raises(MCPError):
            async with connect([sys.executable, str(tmp_path / "server.py")]):
                pass
    finally:
        logger.removeHandler(handler)
    (record,) = records
    assert "wrote to its stdout what is no message of MCP: 'hello hello" in record.getMessage()
    assert record.exc_info is None
    assert len(record.getMessage()) < 350
