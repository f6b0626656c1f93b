"""What a step says of a sampler that was another than it is said to have been: adapter, temperature, template."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.training.models import VOCABULARY
from tests.support.training.worker import completion, groups, make_worker, step
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.training.model.tree import pack
from trainer_server.training.worker import Worker
from trainer_server.wire import Completion, PolicySpec, Sampling

PROMPT = [1, 2, 3]
COUNT, LENGTH = 4, 5


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """A policy with versions 0, 1 and 2, which say different things."""
    worker = make_worker(tmp_path)
    for _ in range(2):
        assert step(worker, groups(1.0, 0.0, 0.0), lr=0.1).error is None
    return worker


def distribution(worker: Worker, tokens: list[int], temperature: float) -> torch.Tensor:
    """Log-probabilities (V,) of what comes next, under the weights that are in place."""
    (row,) = pack([np.array(tokens)] * VOCABULARY, [np.array([one]) for one in range(VOCABULARY)], budget=9999).rows
    with torch.no_grad():
        logp_R, _ = worker.model.logprobs(row, torch.full((VOCABULARY,), temperature))
    return logp_R[torch.from_numpy(row.source_R).argsort()]


def sample(
    worker: Worker, version: int, said: dict[str, Any], temperature: float, prompt: list[int], start: int = 100
) -> None:
    """Completions c100, … as an engine with this version would give them; `said` is what the ledger has of them."""
    worker.model.load(PolicySpec(name="p"), worker.store.directory("p", version))
    generator = torch.Generator().manual_seed(0)
    found: list[Completion] = []
    for at in range(COUNT):
        tokens: list[int] = []
        logps: list[float] = []
        for _ in range(LENGTH):
            logp_V = distribution(worker, prompt + tokens, temperature)
            token = int(torch.multinomial(logp_V.exp(), 1, generator=generator))
            tokens.append(token)
            logps.append(float(logp_V[token]))
        found.append(completion(f"c{start + at}", tokens, logprobs=logps, prompt_token_ids=PROMPT, **said))
    ledger = SQLiteLedger(worker.home.ledger)
    asyncio.run(ledger.add(*found))
    ledger.close()


def told(worker: Worker, **config: Any) -> Any:
    return step(worker, groups(*(float(at % 2) for at in range(COUNT)), start=100), **config)


SAMPLERS = {
    "honest": {},
    "another adapter": {"version": 0},
    "another temperature": {"temperature": 0.5},
    "another template": {"prompt": [3, 1, 1]},
}


@pytest.mark.parametrize("newest", [True, False], ids=["of the newest version", "of an older one"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_jump_raises_an_alarm_and_fails_the_step_when_gross(worker: Worker, name: str, newest: bool) -> None:
    version = 2 if newest else 1
    sampler = {"version": version, "temperature": 1.0, "prompt": PROMPT, **SAMPLERS[name]}
    sample(worker, said={"version": version, "sampling": Sampling(temperature=1.0)}, **sampler)
    metrics = told(worker).result.metrics
    assert metrics["staleness_max"] == 2 - version
    if name == "honest":
        assert metrics["logp_gap"] == pytest.approx(0.0, abs=1e-4)
        assert metrics["sampler_ratio_mean"] == pytest.approx(1.0, abs=1e-4)
        assert not any("differ" in one for one in metrics["alarms"])
        return
    assert metrics["logp_gap"] > 0.1
    assert metrics["sampler_ratio_percentiles"]["p01"] < 0.8 or metrics["sampler_ratio_percentiles"]["p99"] > 1.25
    assert "trainer and engine differ" in metrics["alarms"][0]
    before = worker.store.versions("p")
    failed = told(worker, max_logp_gap=metrics["logp_gap"] / 2)
    assert "nats per token on completions of the same version" in failed.error
    assert worker.store.versions("p") == before


@pytest.mark.parametrize("version", [2, 1], ids=["of the newest version", "of an older one"])
def test_a_group_at_several_temperatures_is_computed_at_that_of_each_completion(worker: Worker, version: int) -> None:
    """As an exploration samples it: the completions share the rows of one prefix tree."""
    for start, temperature in ((100, 1.0), (100 + COUNT, 1.3), (100 + 2 * COUNT, 0.7)):
        said = {"version": version, "sampling": Sampling(temperature=temperature)}
        sample(worker, version=version, said=said, temperature=temperature, prompt=PROMPT, start=start)
    refs = groups(*(float(at % 2) for at in range(3 * COUNT)), start=100)
    metrics = step(worker, refs, importance_sampling_cap=None).result.metrics
    assert (metrics["completions"], metrics["rows"]) == (3 * COUNT, 1)
    assert metrics["logp_gap"] == pytest.approx(0.0, abs=1e-4)
    assert metrics["sampler_ratio_percentiles"]["p01"] == pytest.approx(1.0, abs=1e-3)
    assert metrics["sampler_ratio_percentiles"]["p99"] == pytest.approx(1.0, abs=1e-3)


def test_constrained_completions_of_an_older_version_are_held_to_its_own_log_probs(
    worker: Worker, tmp_path: Path
) -> None:
    """Not to those that the engine gave, which are of the constrained distribution."""
    other = make_worker(tmp_path / "other")
    for _ in range(2):
        step(other, groups(1.0, 0.0, 0.0), lr=0.1)
    options: dict[str, Any] = {"version": 1, "temperature": 0.7, "prompt": PROMPT}
    said = {"version": 1, "sampling": Sampling(temperature=0.7)}
    sample(worker, said=said, **options)
    sample(other, said={**said, "constrained": ["top_p"]}, **options)
    free = told(worker, importance_sampling_cap=None).result.metrics
    known = SQLiteLedger(other.home.ledger).read([f"c{100 + at}" for at in range(COUNT)])
    ledger = SQLiteLedger(other.home.ledger)  # what was said does not matter
    for at in range(COUNT):
        changes = {"id": f"c{200 + at}", "logprobs": [-0.5] * LENGTH}
        asyncio.run(ledger.add(known[f"c{100 + at}"].model_copy(update=changes)))
    ledger.close()
    refs = groups(*(float(at % 2) for at in range(COUNT)), start=200)
    constrained = step(other, refs, importance_sampling_cap=None).result.metrics
    assert constrained["constrained"] == COUNT
    for name in ("ratio_mean", "ratio_max", "loss", "grad_norm"):
        assert constrained[name] == pytest.approx(free[name], rel=1e-4)
    assert constrained["logp_gap"] is None  # there is nothing to compare

    shutil.rmtree(other.store.directory("p", 1))
    gone = step(other, refs).result
    assert gone.metrics["completions_skipped"] == {"version_gone": COUNT}
    assert "version_gone" in gone.metrics["skipped"]
