"""The rows of `python -m benchmarks.families`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.families import row, table
from testbed.families.layers import Moves
from testbed.families.models import FAMILIES, family_model
from testbed.families.trial import FamilyServer, Trial
from trainer_server.common import Connection
from trainer_server.engines.package_models import PACKAGE_MODELS

TRIAL = Trial(
    called_before=None, called=0.5, thought=None, finished=None, sft_loss=(2.0, 0.1), logp_gap=0.01,
    ratio_middle=(0.9, 1.1), rows=1, completions=8, tokens=200, tokens_separate=800, shared=True, replayed=0.0,
    prefix_drift=None, swap=0.1, moved=0.1, version=2, answered_by=(2,), seconds=9.0,
)  # fmt: skip
SERVER = FamilyServer(Connection("http://127.0.0.1:1", "key"), "hermes", None, 3.0)


def test_a_row_says_what_is_adapted_and_applied_and_how_exact_a_step_is() -> None:
    trainer_T = torch.tensor([0.2, -0.3])
    moves = {
        "all": Moves(trainer_T, trainer_T),
        "q_proj": Moves(trainer_T, trainer_T * 1.1),
        "k_proj": Moves(trainer_T, torch.zeros(2)),
        "experts": Moves(trainer_T, torch.zeros(2), "vLLM would leave it out"),
    }
    found = row("Heron", SERVER, TRIAL, moves, 3e-6)
    names = ("family", "targets", "applied", "gap", "exact", "shared")
    assert tuple(found[name] for name in names) == (
        "Heron", ["q_proj", "k_proj", "experts"], ["q_proj"], 0.01, 3e-6, 0.75,
    )  # fmt: skip
    assert row("Heron", SERVER, replace(TRIAL, shared=False), moves, 0.0)["shared"] == 0
    assert table([found, {"family": "Owl", "not_here": "no tokenizer"}]).row_count == 2


def test_a_family_with_real_weights_is_a_model_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path))
    real = [family for family in FAMILIES.values() if family.weights]
    for family in real:
        directory = PACKAGE_MODELS[family.weights or ""].directory(tmp_path)
        directory.mkdir(parents=True)
        assert family_model(family) == directory
    assert len(real) == 3
