"""The processors of a process: those of its affinity, and no more than its control group pays for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trainer_server.common import processors as module
from trainer_server.common.processors import processor_count

MAKE = {
    "version 2": lambda group, quota: (group / "cpu.max").write_text(f"{quota if quota > 0 else 'max'} 100000\n"),
    "version 1": lambda group, quota: [
        (group / "cpu").mkdir(),
        (group / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n"),
        (group / "cpu" / "cpu.cfs_period_us").write_text("100000\n"),
    ],
}


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system has no affinity and no control groups")


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of control groups of a process that may run on eight processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(module, "_GROUPS", tmp_path)
    return tmp_path


@pytest.mark.parametrize("version", MAKE)
@pytest.mark.parametrize(("quota", "count"), [(200_000, 2), (150_000, 2), (20_000, 1), (1_600_000, 8), (-1, 8)])
def test_a_quota_is_processors_rounded_up(eight: Path, version: str, quota: int, count: int) -> None:
    MAKE[version](eight, quota)
    assert processor_count() == count


def test_without_control_groups_the_affinity_counts(eight: Path) -> None:
    assert processor_count() == 8


def test_a_process_that_may_run_on_one_processor_has_one() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert processor_count() == 1
    finally:
        os.sched_setaffinity(0, allowed)
