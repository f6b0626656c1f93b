"""What was freed goes back to the system."""

from __future__ import annotations

import platform

import psutil
import pytest

from trainer_server.process.hardware import release_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked")
def test_memory_between_blocks_in_use_is_given_back() -> None:
    process = psutil.Process()
    blocks = [bytearray(b"x" * 100_000) for _ in range(2000)]
    kept = blocks[::100]
    del blocks
    before = process.memory_info().rss
    release_memory()
    assert len(kept) == 20
    assert process.memory_info().rss < before - 100_000_000
