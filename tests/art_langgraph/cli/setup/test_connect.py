"""`art-langgraph connect` and `disconnect`, against the real server."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from art_langgraph import TrainerClient
from tests.support.cli import art
from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.common import Connection, Home


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home of a user who has no server."""
    for name in ("ART_BASE_URL", "ART_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ART_HOME", str(tmp_path / "laptop"))
    return Home(tmp_path / "laptop")


async def test_programs_find_the_server_until_the_user_disconnects(laptop: Home, server: TrainerServer) -> None:
    done = art("connect", server.url, typed=f"{TOKEN}\n")
    assert done.exit_code == 0, done.output
    assert f"connected to {server.url} as server-key, scope admin. Kept in {laptop.connection}" in done.output
    assert TOKEN not in done.output
    assert stat.S_IMODE(laptop.connection.stat().st_mode) == 0o600
    assert stat.S_IMODE(laptop.root.stat().st_mode) == 0o700
    async with TrainerClient() as trainer:
        assert "agent" in [policy.name for policy in await trainer.policies()]
    assert art("status", "--json").exit_code == 0
    assert "is deleted" in art("disconnect").output
    assert not laptop.connection.exists()
    assert "not connected" in art("disconnect").output
    assert Connection.find_url() == "http://127.0.0.1:8400"


def test_the_token_may_come_from_the_environment(
    laptop: Home, server: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_API_KEY", TOKEN)
    done = art("connect", server.url, "--json", typed="")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["scope"] == "admin"
    assert "ART_API_KEY is set, and comes first" in done.stderr
    assert laptop.read_connection() == Connection(server.url, TOKEN)


@pytest.mark.parametrize(
    ("url", "typed", "words"),
    [
        ("{}", "wrong\n", "does not take the token"),
        ("{}", "\n", "no token: set ART_API_KEY, or give it on the standard input"),
        ("http://art.example.com", TOKEN, "unencrypted"),
        ("art.example.com", TOKEN, "is no address of a server"),
    ],
)
def test_what_is_refused_changes_nothing(laptop: Home, server: TrainerServer, url: str, typed: str, words: str) -> None:
    laptop.connect(Connection("http://before", "key"))
    done = art("connect", url.format(server.url), typed=typed)
    assert done.exit_code == 1
    assert words in str(done.exception)
    assert laptop.read_connection() == Connection("http://before", "key")


@pytest.mark.slow
def test_a_token_that_is_typed_is_not_shown(laptop: Home, server: TrainerServer) -> None:
    """On a real terminal."""
    ours, theirs = pty.openpty()
    line = [sys.executable, "-c", "from art_langgraph.cli.main import main; main()", "connect", server.url]
    process = subprocess.Popen(line, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    while b"Token for" not in shown:
        shown += os.read(ours, 1000)
    deadline = time.monotonic() + PATIENCE
    while termios.tcgetattr(ours)[3] & termios.ECHO:  # what is typed before is thrown away
        assert time.monotonic() < deadline, shown
        time.sleep(0.01)
    os.write(ours, f"{TOKEN}\n".encode())
    try:
        while more := os.read(ours, 1000):
            shown += more
    except OSError:  # the terminal is closed
        pass
    os.close(ours)
    assert process.wait(PATIENCE) == 0, shown
    assert b"connected to" in shown
    assert TOKEN.encode() not in shown
    assert laptop.read_connection() == Connection(server.url, TOKEN)
