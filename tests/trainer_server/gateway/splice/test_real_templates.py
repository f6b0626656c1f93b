"""An agent of eight turns on real chat templates, which TRL carries: what drifts, and what is spliced."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.scripted_turns import HERMES, LLAMA, Characters, RealTemplate, agent, trl_template

HEADER = "| template | splice | prompts | drift | packed tokens |"
TEMPLATES = {
    "qwen3": ("qwen3", "<|im_end|>", HERMES, True),
    "qwen3, no thoughts": ("qwen3", "<|im_end|>", HERMES, False),
    "qwen2_5": ("qwen2_5", "<|im_end|>", HERMES, False),
    "llama3_1": ("llama3_1", "<|eot_id|>", LLAMA, False),
}
"""TRL's name, the token that ends turns, how calls are written, whether the model thinks."""


@pytest.mark.parametrize(
    ("name", "mode", "ways", "drift"),
    [
        ("qwen3", "off", set(), 1.0),
        ("qwen3", "exact", {"thoughts"}, 1.0),
        ("qwen3", "thoughts", {"spliced"}, 0.0),
        ("qwen3, no thoughts", "off", set(), 0.73),
        ("qwen3, no thoughts", "exact", {"spliced"}, 0.0),
        ("qwen2_5", "off", set(), 0.73),
        ("qwen2_5", "exact", {"spliced"}, 0.0),
        ("llama3_1", "off", set(), 0.82),
        ("llama3_1", "exact", {"spliced"}, 0.0),
    ],
)
def test_eight_turns(
    name: str, mode: str, ways: set[str], drift: float, record_property: Callable[[str, object], None]
) -> None:
    file, end, call, thinks = TEMPLATES[name]
    if not (path := trl_template(file)).exists():
        pytest.skip(f"this version of TRL has no {path.name}")
    template = RealTemplate(path.read_text(), end, call, Characters(), thinks=thinks)
    run = agent(template, mode)
    assert set(run.ways) == ways
    assert run.drift == pytest.approx(drift, abs=0.01)
    assert run.packed < agent(template, "off").packed or set(run.ways) != {"spliced"}
    prompts = ", ".join(sorted(ways)) or "rendered"
    record_property(HEADER, f"| {name} | {mode} | {prompts} | {run.drift:.2f} | {run.packed} |")
