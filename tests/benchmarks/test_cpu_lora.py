"""benchmarks.cpu_lora: its requests, and what it makes of their seconds."""

from __future__ import annotations

import pytest

from benchmarks.cpu_lora import ADAPTERS, CASES, WORKLOADS, Workload, requests, side


@pytest.mark.parametrize(("case", "prefixes"), [("common prompt", 1), ("own prompts", 8), ("four adapters", 4)])
def test_a_case_asks_the_base_model_for_the_same_prompts_as_its_adapters(case: str, prefixes: int) -> None:
    adapted, base = (requests(Workload(case, adapted), "base", 8, batch=0) for adapted in (True, False))
    assert [prompt for _, prompt in adapted] == [prompt for _, prompt in base]
    assert {model for model, _ in base} == {"base"}
    assert len({model for model, _ in adapted}) == (ADAPTERS if case == "four adapters" else 1)
    caches = {(model, _common(prompt)) for model, prompt in adapted}
    assert len(caches) == len({_common(prompt) for _, prompt in base}) == prefixes
    assert len({prompt for _, prompt in adapted}) == 8


def test_no_batch_has_the_prompts_of_another() -> None:
    batches = [requests(workload, "base", 8, batch) for batch, workload in enumerate(WORKLOADS)]
    beginnings = [{_common(prompt) for _, prompt in batch} for batch in batches]
    assert sum(map(len, beginnings)) == len(set().union(*beginnings))


def test_the_figures_of_a_side() -> None:
    seconds = {Workload(case, True): 3.0 for case in CASES} | {Workload(case, False): 2.0 for case in CASES}
    seconds |= {Workload("common prompt", True, brief=True): 1.4, Workload("common prompt", False, brief=True): 1.2}
    figures = side(seconds, tokens=48)
    assert figures["over_base"] == dict.fromkeys(CASES, 1.5)
    assert figures["decode_ms"] == pytest.approx({"adapter": 1000 * 1.6 / 32, "base": 1000 * 0.8 / 32})


def _common(prompt: str) -> str:
    return prompt.partition("What did")[0]
