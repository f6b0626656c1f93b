"""The entry point: what holds for all commands."""

from __future__ import annotations

import io
import sys

import pytest

from art_langgraph.cli.main import main


def test_a_pipe_gets_each_line_when_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps what it writes into a pipe, and `quickstart | tee log` would show nothing for minutes."""
    pipe = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(sys, "argv", ["art-langgraph", "--help"])
    with pytest.raises(SystemExit):
        main()
    before = len(pipe.buffer.getvalue())  # type: ignore[attr-defined]
    pipe.write("a line\n")
    assert pipe.buffer.getvalue()[before:] == b"a line\n"  # type: ignore[attr-defined]
