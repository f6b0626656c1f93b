"""`specialize` on the real vLLM: in a few minutes a server of another project is used better than before."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from art_mcp import GenerationSettings, RunSettings, connect, specialize
from benchmarks.servers.registry import SERVERS

pytestmark = [pytest.mark.vllm, pytest.mark.servers, pytest.mark.usefixtures("found_by_clients")]

MINUTES = 6.0


async def test_a_server_is_used_better_after_a_few_minutes(tmp_path: Path) -> None:
    server = SERVERS["time"]
    async with connect(server.command(), start_timeout=300) as connected:
        began = time.monotonic()
        made = await specialize(
            connected,
            policy="specialized",
            minutes=MINUTES,
            generation=GenerationSettings(resources=dict(server.tables)),
            runs=RunSettings(rank=8),
            output=tmp_path / "out",
            progress=False,
            on_stage=print,
        )
    took = time.monotonic() - began
    print((tmp_path / "out" / "report.md").read_text())
    assert made.before is not None
    assert made.before.headline_interval is not None
    assert made.after is not None
    assert made.after.headline_interval is not None
    assert made.after.headline_interval[0] > made.before.headline_interval[1]
    assert took < 60 * (MINUTES + 2), "a stage may end late by an update or a step"
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").exists()
