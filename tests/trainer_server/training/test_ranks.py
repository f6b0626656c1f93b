"""Several processes, gloo between them, make the step of one: with the base model whole, and divided (FSDP2)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from tests.support.sockets import exposed
from tests.support.training.models import ARCHITECTURES, tiny_model
from tests.support.training.worker import make_worker
from trainer_server.jobs.queue import JobQueue
from trainer_server.training.ranks import Ranks

LAUNCH = ["trainer_server.training.launch", "2"]

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "several updates": {"num_iterations": 2, "num_minibatches": 2, "lr": 1e-5},
    "reference and entropy": {"beta": 0.1, "entropy_coef": 0.01, "top_entropy_quantile": 0.5},
    "small rows": {"token_budget": 8},
    "teacher": {"distill": {"teacher": "other", "weight": 0.5}, "num_minibatches": 2, "lr": 1e-5},
    "by trajectory": {"loss_aggregation": "trajectory", "num_minibatches": 2, "lr": 1e-5},
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What one process, two, and two with the base model divided between them make of every case."""
    where = tmp_path_factory.mktemp("ranks")
    tiny_model(where / "model", ARCHITECTURES["llama"])
    cases = {name: {"lr": 1e-3, "max_logp_gap": None, **options} for name, options in CASES.items()}
    found = {}
    for name, count, sharded in (("one", 1, False), ("whole", 2, False), ("sharded", 2, True)):
        found[name] = where / name
        found[name].mkdir()
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                *(LAUNCH if count > 1 else []),
                "tests.support.training.ranked_step",
                str(where / "model"),
                str(found[name]),
                json.dumps(cases),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_FSDP": str(sharded).lower()},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("base", ["whole", "sharded"])
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_make_the_step_of_one(outcomes: dict[str, Path], case: str, base: str) -> None:
    one, two = (json.loads((outcomes[name] / f"{case}.json").read_text()) for name in ("one", base))
    assert two["ranks"] == 2
    assert two["layers_gathered"] == 0
    assert two["rows"] >= 2
    for name in ("loss", "grad_norm", "ratio_mean", "entropy", "logp_gap", "tokens_trained", "updates"):
        assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-6), name
    expected, found = (load_file(outcomes[name] / f"{case}.safetensors") for name in ("one", base))
    whole = torch.cat([expected[name].flatten() for name in expected])
    other = torch.cat([found[name].flatten() for name in expected])
    assert (whole - other).norm() / whole.norm() <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("base", ["whole", "sharded"])
def test_two_ranks_make_the_warm_start_of_one(outcomes: dict[str, Path], base: str) -> None:
    one, two = (json.loads((outcomes[name] / "warm start.json").read_text()) for name in ("one", base))
    assert (two["ranks"], two["updates"], two["stopped"]) == (2, 4, "epochs")
    for name in ("loss_first", "loss_last", "grad_norm", "validation_losses", "updates_kept"):
        assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-6), name
    expected, found = (load_file(outcomes[name] / "warm start.safetensors") for name in ("one", base))
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6)


def run_failing(where: Path, *options: str) -> subprocess.CompletedProcess[str]:
    make_worker(where)
    return subprocess.run(
        [sys.executable, "-m", *LAUNCH, "tests.support.training.ranked_failures", str(where), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.slow
def test_what_fails_on_one_rank_fails_the_job_on_all_and_nobody_else_can_reach_them(tmp_path: Path) -> None:
    done = run_failing(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    away, full, stepped = json.loads((tmp_path / "reports.json").read_text())
    assert away["error"].startswith("rank 1 of 2: the database is away. The policy stays at the version it had.")
    assert full["error"].startswith("rank 0 of 2: [Errno 28] No space left on device. The policy stays at")
    assert away["result"] is full["result"] is stepped["error"] is None
    assert stepped["result"]["version"] == 1
    assert stepped["result"]["metrics"]["ranks"] == 2
    sockets = [(ip, port) for ip, port in json.loads((tmp_path / "sockets.json").read_text())]
    assert sockets, "gloo listens"
    assert exposed(sockets) == []


@pytest.mark.slow
def test_a_rank_that_fails_while_layers_are_gathered_ends_the_job_and_all_ranks(tmp_path: Path) -> None:
    done = run_failing(tmp_path, "--shard")
    assert done.returncode == 1
    assert "RankFailed" in done.stderr
    board = JobQueue(tmp_path / "home" / "jobs")
    failed = board.training_outcome(board.ids()[-1])
    assert failed is not None
    assert failed.error is not None
    assert failed.error.startswith("rank 1 of 2: [Errno 28] No space left on device. The policy stays at")


def test_orders_reach_ranks_that_come_later_one_by_one(tmp_path: Path) -> None:
    """Through the store, and not by a collective: those have a time limit."""
    stores = [dist.FileStore(str(tmp_path / "store"), 2) for _ in range(2)]
    first, second = (Ranks(index, 2, store=store) for index, store in enumerate(stores))
    first.order("a step")
    first.order("the next one")
    assert [second.next_order(), second.next_order()] == ["a step", "the next one"]


def test_alone_there_is_nothing_to_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    ranks = Ranks.join()
    assert (ranks.index, ranks.count, ranks.first, ranks.shards_model) == (0, 1, True, False)
    assert ranks.broadcast("job") == "job"
    value = torch.ones(2)
    ranks.all_reduce(value)
    assert ranks.gather({"a": value})["a"] is value
    assert value.tolist() == [1.0, 1.0]
