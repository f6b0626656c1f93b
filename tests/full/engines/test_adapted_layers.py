"""Each kind of linear layer that gets an adapter: alone, it moves the real vLLM's log-probs as the trainer's."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.families.layers import measure_moves
from tests.support.engines.adapted_layers import FAMILIES, family_model

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ERROR = 0.25
"""vLLM computes in bf16: 0.04 to 0.1 was measured, of moves of 0.1 nats a token and more. An adapter that it does not
apply, or applies to other rows of a packed layer, has an error of 1 or more."""
EXPECTED = {
    "Qwen3.5": "q_proj k_proj v_proj o_proj in_proj_qkv in_proj_z in_proj_b in_proj_a out_proj "
    "gate_proj up_proj down_proj",
    "Granite hybrid": "q_proj k_proj v_proj o_proj in_proj out_proj input_linear output_linear",
    "Phi-3": "o_proj qkv_proj down_proj gate_up_proj",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_adapted_layer_alone_moves_the_engine_as_the_trainer(name: str, tmp_path: Path) -> None:
    moves = measure_moves(family_model(FAMILIES[name], tmp_path / "model"), tmp_path / "adapters")
    assert list(moves) == ["all", *EXPECTED[name].split()]
    assert {target: move.error for target, move in moves.items() if not move.error < ERROR} == {}
