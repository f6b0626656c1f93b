"""The directory of copies: what a process that died has left is removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from art_mcp.worlds.scratch import Scratch

DYING = (
    "import sys; from pathlib import Path; from art_mcp.worlds.scratch import Scratch\n"
    "scratch = Scratch(Path(sys.argv[1])); (scratch.path / 'copy').mkdir(); print(scratch.path, flush=True); input()"
)


def test_a_directory_is_of_its_owner_and_is_removed(tmp_path: Path) -> None:
    scratch, other = Scratch(tmp_path / "worlds"), Scratch(tmp_path / "worlds")
    assert scratch.path != other.path
    assert scratch.path.stat().st_mode & 0o777 == 0o700
    assert other.removed_count == 0
    scratch.close()
    assert not scratch.path.exists()
    assert other.path.exists()
    other.close()


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DYING, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        left = Path(process.stdout.readline().strip())
        living = Scratch(tmp_path)
        assert (living.removed_count, left.exists()) == (0, True)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
    after = Scratch(tmp_path)
    assert (after.removed_count, left.exists(), living.path.exists()) == (1, False, True)
    after.close()
    living.close()


def test_a_leftover_that_cannot_be_removed_is_said_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "left").mkdir()

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("art_mcp.worlds.scratch.remove_tree", refuse)
        scratch = Scratch(tmp_path)
    assert scratch.removed_count == 0
    assert "left, which a process left that died, cannot be removed: " in caplog.text
    scratch.close()
