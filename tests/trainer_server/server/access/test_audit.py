"""The audit log: lines that stay, files that end, and nothing of what people wrote."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from trainer_server.server.access.audit import AuditLog
from trainer_server.wire import ConfigError, Home


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
    log = AuditLog(Home(tmp_path), most_bytes=300, kept=2)
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
        log = AuditLog(Home(tmp_path), most_bytes=1000, kept=100)
        for number in range(20):
            log.add(name, "step", str(number), "ok")

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = list(AuditLog(Home(tmp_path), kept=100).entries())
    for name in ("a", "b", "c"):
        assert [int(entry.target) for entry in entries if entry.who == name] == list(range(20))


def test_a_line_that_was_broken_off_is_passed_over_and_damage_is_named(tmp_path: Path) -> None:
    log = AuditLog(Home(tmp_path))
    log.add("alice", "step", "agent", "ok")
    path = log.directory / "audit.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"time": "2026')
    assert len(list(log.entries())) == 1
    path.write_text("damaged\n" + whole)
    with pytest.raises(ConfigError, match="line 1 is no entry"):
        list(log.entries())
