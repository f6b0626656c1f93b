"""`specialize` on the real vLLM: in a few minutes a server of another project is used better than before."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from art_mcp import GenerationSettings, RunSettings, TrainingSettings, WarmStart, connect, specialize
from benchmarks.servers.registry import SERVERS
from trainer_server.wire import SFTConfig

pytestmark = [pytest.mark.vllm, pytest.mark.servers, pytest.mark.usefixtures("found_by_clients")]

MINUTES = 20.0


async def test_a_server_is_used_better_after_a_few_minutes(tmp_path: Path) -> None:
    """The work is limited and the time is ample: how much is learnt must not depend on what else the machine does."""
    server = SERVERS["time"]
    async with connect(server.command(), start_timeout=300) as connected:
        began = time.monotonic()
        made = await specialize(
            connected,
            policy="specialized",
            minutes=MINUTES,
            scenarios=100,
            generation=GenerationSettings(resources=dict(server.tables), difficulty=(1, 2)),
            warm_start=WarmStart(
                config=SFTConfig(lr=4e-3, num_train_epochs=1, per_device_train_batch_size=2, detach_prefix=True)
            ),
            training=TrainingSettings(steps=1, groups_per_step=4, n=6),
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
    assert len(made.steps) == 1
    assert took < 60 * MINUTES
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").exists()
