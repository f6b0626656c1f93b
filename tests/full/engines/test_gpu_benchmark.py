"""benchmarks.gpu, rehearsed without a GPU: engine, gateway and loop, on the real vLLM."""

from __future__ import annotations

import pytest

from tests.support.benchmarks.rehearsal import rehearse

pytestmark = pytest.mark.vllm


def test_engine_and_loop_are_rehearsed_without_a_gpu() -> None:
    parts = rehearse("serving", "learning")
    rows = {row["row"]: row for row in parts["serving"]["rows"]}
    counts = ("gateway, 2", "graphs, 2", "gateway, 4", "graphs, 4")
    assert list(rows) == ["first start", "second start", *counts, "loop, step 1", "loop, step 2", "raw vLLM"]
    assert rows["loop, step 2"]["version"] == 2
    assert rows["loop, step 2"]["logp_gap"] < 0.05
    assert rows["raw vLLM"]["by_requests"]["4"]["completions_per_s"] > 0
    assert parts["learning"]["rows"][-1]["steps"] == 2
