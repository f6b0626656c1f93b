"""Families of models, with their real tokenizers and templates: served, warm-started, captured, trained, swapped.

`python -m benchmarks.families` prints the figures, and tries families that are not in TRIED.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from testbed.families.models import FAMILIES, FamilyUnavailable, family_model
from testbed.families.trial import family_server, run_trial

pytestmark = pytest.mark.vllm

TRIED = {"Qwen3": ("hermes", "qwen3"), "Gemma-3": ("pythonic", None), "gpt-oss": ("openai", "openai_gptoss")}
"""The parsers of tool calls and of thoughts that serve them."""
GAP = 0.05
"""Nats per token, half of what a step raises an alarm at. Trainer and vLLM both compute in bf16, by other kernels."""


@pytest.mark.parametrize("name", TRIED)
async def test_a_family_is_served_parsed_captured_and_trained(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    try:
        family_model(family)
    except FamilyUnavailable as missing:
        pytest.skip(str(missing))
    with family_server(family, tmp_path, logging.getLogger(name).info) as server:
        trial = await run_trial(family, server.connection, tmp_path)
    assert (server.tool_parser, server.reasoning_parser) == TRIED[name]
    assert trial.called >= 0.25, trial
    assert trial.thought is None or trial.thought >= 0.25, trial
    assert trial.logp_gap < GAP, trial
    assert trial.shared
    assert trial.rows < trial.completions
    assert trial.tokens < trial.tokens_separate
    assert trial.moved > 0
    assert trial.answered_by == (trial.version,)
