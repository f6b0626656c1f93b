"""Segments of a packed row against every path of the tree alone; functions of transformers stay as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers.models.lfm2.modeling_lfm2 as lfm2
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, JambaConfig, Lfm2Config

from tests.support.training.models import PLAIN, Data, packed
from trainer_server.training.model import recurrent
from trainer_server.training.model.recurrent import Segments, States, carry_states, has_known_layers
from trainer_server.training.model.tree import Row

CPU = torch.device("cpu")
KEY = (0, "sum")

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12)
trees = st.lists(st.tuples(tokens, tokens), min_size=1, max_size=8)


def mix(valid_BN: torch.Tensor, states_B: Any, x_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """state = state / 2 + x: the order of tokens counts."""
    state_B = torch.zeros(len(x_BN), dtype=x_BN.dtype) if states_B is None else states_B
    outputs = []
    for x_B, valid_B in zip(x_BN.T, valid_BN.T, strict=True):
        state_B = torch.where(valid_B, state_B / 2 + x_B, state_B)
        outputs.append(state_B)
    return torch.stack(outputs, 1), state_B


def some_inputs(row: Row) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, len(row.tokens_T), dtype=torch.float64, generator=generator).requires_grad_()


def alone(row: Row, x_1T: torch.Tensor) -> torch.Tensor:
    """What each path of the row gives alone, (1, T)."""
    out_1T = torch.zeros_like(x_1T)
    for run in row.runs:
        path_1L = x_1T[:, torch.from_numpy(run.path_L)]
        out_1L, _ = mix(torch.ones_like(path_1L, dtype=torch.bool), None, path_1L)
        out_1T[:, run.start : run.stop] = out_1L[:, len(run.path_L) - (run.stop - run.start) :]
    return out_1T


@given(trees, st.sampled_from([1, 3, 64]), st.sampled_from([0, 5]))
def test_a_recurrence_over_segments_equals_every_path_alone(data: Data, chunk: int, padding: int) -> None:
    (row,) = packed(data).rows
    x_1T = some_inputs(row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrent, "_CHUNK", chunk)
        padded_1T = torch.cat([x_1T, torch.full((1, padding), 9.0)], 1)
        out_1T = Segments(row, CPU).scan(KEY, mix, padded_1T)
    expected_1T = alone(row, x_1T)
    weight_T = torch.arange(1.0, out_1T.shape[1] + 1, dtype=torch.float64)
    assert torch.allclose(out_1T[:, : len(row.tokens_T)], expected_1T)
    assert not out_1T[:, len(row.tokens_T) :].any()
    (grad,), (expected_grad,) = (
        torch.autograd.grad((y_1T * weight_T[: y_1T.shape[1]]).sum(), x_1T) for y_1T in (out_1T, expected_1T)
    )
    assert torch.allclose(grad, expected_grad)


@given(trees)
def test_the_rest_of_a_row_begins_with_the_state_of_its_trunk(data: Data) -> None:
    (row,) = packed([([1, 2, *prompt], completion) for prompt, completion in data]).rows
    x_1T = some_inputs(row).detach()
    states: States = {}
    Segments(row, CPU, stop=row.trunk, after=states).scan(KEY, mix, x_1T[:, : row.trunk])
    rest_1T = Segments(row, CPU, start=row.trunk, before=states).scan(KEY, mix, x_1T[:, row.trunk :])
    assert torch.allclose(rest_1T, alone(row, x_1T)[:, row.trunk :])


@given(trees, st.sampled_from([1, 2, 4]), st.sampled_from([0, 5]))
def test_a_convolution_reads_the_tokens_before_it_on_its_path(data: Data, taps: int, padding: int) -> None:
    (row,) = packed(data).rows
    x_1CT, weight_CK = torch.randn(1, 3, len(row.tokens_T) + padding), torch.randn(3, taps)
    out_1CT = recurrent._convolve(lfm2.causal_conv1d_fn, Segments(row, CPU), 0, x_1CT, weight_CK)
    assert out_1CT.shape == x_1CT.shape
    for run in row.runs:
        path_1CL = lfm2.causal_conv1d_fn(x_1CT[:, :, torch.from_numpy(run.path_L)], weight_CK)
        own_1CL = path_1CL[:, :, len(run.path_L) - (run.stop - run.start) :]
        assert torch.allclose(out_1CT[:, :, run.start : run.stop], own_1CL, atol=1e-6)


def test_segments_of_a_level_are_one_batch_where_their_lengths_are_alike() -> None:
    (row,) = packed([([0] * 300, [at, *[3] * length]) for at, length in enumerate([100, 120, 90, 10])]).rows
    assert Segments(row, CPU)._batches == [[0], [4], [1, 2, 3]]


def test_functions_of_transformers_compute_as_before_without_segments() -> None:
    model = AutoModelForCausalLM.from_config(Lfm2Config(**PLAIN, layer_types=["conv", "full_attention"])).eval()
    ids_1T = torch.arange(9)[None]
    expected = model(input_ids=ids_1T, use_cache=False).logits
    assert has_known_layers(model)
    carry_states(model)
    exchanged = lfm2.causal_conv1d_fn
    carry_states(model)
    assert lfm2.causal_conv1d_fn is exchanged
    assert torch.equal(model(input_ids=ids_1T, use_cache=False).logits, expected)
    assert torch.equal(model.generate(ids_1T, max_new_tokens=3, do_sample=False)[:, :9], ids_1T)


def test_layers_that_are_not_known_stay_as_they_are() -> None:
    model = AutoModelForCausalLM.from_config(JambaConfig(**PLAIN, num_experts=2, mamba_d_state=4, mamba_expand=1))
    assert not has_known_layers(model)
    carry_states(model)
    assert not any("forward" in vars(module) for module in model.modules())
