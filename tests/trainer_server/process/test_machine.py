"""Memory of this machine, of its processes by session, and of GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_server.process.hardware import (
    gpu_use,
    main_memory,
    memory_in_use,
    resident_memory,
    resident_memory_of_sessions,
    visible_gpus,
)

INNER = "held = bytes([1]) * (64 << 20); print(1); input()"
HOLDS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {INNER!r}])"


def test_the_processes_of_a_session_are_counted_together() -> None:
    line = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        leader.stdout.read(1)
        whole = resident_memory_of_sessions()[leader.pid]
        alone = resident_memory(leader.pid)
        leader.communicate(b"\n")
    assert 1 << 20 < alone < whole - (32 << 20)
    assert resident_memory(leader.pid) == 0
    assert resident_memory(os.getpid()) > 1 << 20


def test_memory_in_use_is_a_part_of_all() -> None:
    used = memory_in_use()
    assert used is not None
    assert 0 < used <= main_memory()


@pytest.mark.parametrize(
    ("said", "use"),
    [("1024, 81920\n0, 81920\n", [(1 << 30, 80 << 30), (0, 80 << 30)]), ("[N/A], [N/A]\n", []), ("", [])],
)
def test_gpus_are_asked_of_their_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, use: list[tuple[int, int]]
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\nprintf '{said}'\n")
    command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpu_use() == use
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert list(visible_gpus().values()) == use
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert visible_gpus() == ({"1": use[1]} if use else {})
