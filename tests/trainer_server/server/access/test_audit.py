"""The audit log: lines that stay, files that end, and nothing of what people wrote."""

from __future__ import annotations

import resource
import signal
import stat
import threading
from pathlib import Path

import pytest

from trainer_server.common import Home
from trainer_server.server.access.audit import AuditLog
from trainer_server.wire import ConfigError


def test_lines_are_read_back_in_their_order(tmp_path: Path) -> None:
    log = AuditLog(Home(tmp_path))
    log.add("alice", "policy.promote", "agent@3", "ok", status=200, address="10.0.0.7")
    log.add("cli:root", "token.revoke", "bob\n{half \ud83d", "refused")
    first, second = log.entries()
    assert (first.who, first.action, first.target, first.result) == ("alice", "policy.promote", "agent@3", "ok")
    assert (first.status, first.address) == (200, "10.0.0.7")
    assert (second.who, second.status, second.address) == ("cli:root", None, None)
    assert list(log.entries(since=second.time.timestamp())) == [second] or first.time == second.time
    assert list(log.entries(since=second.time.timestamp() + 1)) == []
    for path in log.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_files_are_rotated_by_size_and_the_oldest_goes(tmp_path: Path) -> None:
    log = AuditLog(Home(tmp_path), most_bytes=300, kept_files=2)
    for number in range(20):
        log.add("alice", "step", f"agent, job-{number}", "ok")
    targets = [entry.target for entry in log.entries()]
    assert targets == [f"agent, job-{number}" for number in range(20 - len(targets), 20)]
    assert 4 <= len(targets) < 20
    assert sorted(path.name for path in log.directory.iterdir()) == [
        "audit.1.jsonl",
        "audit.2.jsonl",
        "audit.jsonl",
        "lock",
    ]


def test_several_writers_lose_no_line_while_files_rotate(tmp_path: Path) -> None:
    def write(name: str) -> None:
        log = AuditLog(Home(tmp_path), most_bytes=1000, kept_files=100)
        for number in range(20):
            log.add(name, "step", str(number), "ok")

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = list(AuditLog(Home(tmp_path), kept_files=100).entries())
    for name in ("a", "b", "c"):
        assert [int(entry.target) for entry in entries if entry.who == name] == list(range(20))


@pytest.mark.parametrize(
    "damage",
    [
        b'{"time": "2026',
        b"damaged\n",
        b"\xff\xfe\n",
        b"[" * 100_000,
        b"{}\n",
        b"\0" * 4096,
        b'{"time": 1e400, "who": 1}',
    ],
)
def test_a_line_that_is_no_entry_is_named_and_all_others_are_read(tmp_path: Path, damage: bytes) -> None:
    log, wrong = AuditLog(Home(tmp_path)), list[str]()
    log.add("alice", "step", "agent", "ok")
    path = log.directory / "audit.jsonl"
    with path.open("ab") as file:
        file.write(damage)
    log.add("bob", "step", "agent", "ok")
    assert [entry.who for entry in log.entries(skip=wrong.append)] == ["alice", "bob"]
    assert len(wrong) == 1
    assert f"{path}, line 2 is" in wrong[0]


def test_a_line_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full after a part of a line."""
    log = AuditLog(Home(tmp_path))
    log.add("alice", "step", "agent", "ok")
    size = (log.directory / "audit.jsonl").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            log.add("bob", "step", "agent", "ok")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.add("carol", "step", "agent", "ok")
    assert [entry.who for entry in log.entries(skip=pytest.fail)] == ["alice", "carol"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    log = AuditLog(Home(tmp_path))
    (log.directory / "audit.jsonl").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"audit\.jsonl cannot be read: Is a directory"):
        list(log.entries())
