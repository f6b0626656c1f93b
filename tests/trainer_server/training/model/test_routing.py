"""Router replay: the model's own experts change nothing, others are those of a model that is made to choose them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    DeepseekV3Config,
    GptOssConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen3_5MoeTextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.support.training.models import SIZES, packed, tiny_model
from trainer_server.training.model import routing
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.routing import Experts
from trainer_server.training.model.tree import Row
from trainer_server.wire import TrainingError

pytestmark = pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")

CONFIGS: dict[str, PretrainedConfig] = {
    "Qwen3-MoE": Qwen3MoeConfig(
        **SIZES, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True
    ),
    "Qwen3-MoE, weights as they are": Qwen3MoeConfig(
        **SIZES, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=False
    ),
    "Mixtral": MixtralConfig(**SIZES, num_local_experts=6, num_experts_per_tok=2),
    "gpt-oss": GptOssConfig(
        **SIZES,
        num_local_experts=6,
        num_experts_per_tok=2,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "Qwen3.5-MoE": Qwen3_5MoeTextConfig(
        **SIZES,
        layer_types=["linear_attention", "full_attention"],
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=8,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "DeepSeek V3": DeepseekV3Config(
        **{**{key: value for key, value in SIZES.items() if key != "head_dim"}, "num_key_value_heads": 4},
        n_routed_experts=6,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        moe_intermediate_size=16,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
}
DATA = [([3, 4, 5, 6, 7], [8, 9, 10]), ([3, 4, 5, 6, 7], [8, 11]), ([3, 4, 12], [13, 14])]
"""Three branches."""


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> PolicyModel:
    return tiny_model(tmp_path, CONFIGS[request.param])


def row_of(data: Any = DATA) -> Row:
    (row,) = packed(data).rows
    return row


def results(model: PolicyModel, row: Row, experts: Experts | None = None) -> list[torch.Tensor]:
    logp_R, _ = model.logprobs(row, torch.ones(len(row.target_R)), experts_TLK=experts)
    grads = torch.autograd.grad(logp_R.sum(), [weight for _, weight in model.parameters()])
    return [logp_R.detach(), *grads]


def routers(model: PolicyModel) -> list[tuple[int, Any]]:
    layers = model._base.get_decoder().layers
    return [
        (at, part)
        for at, layer in enumerate(layers)
        for part in layer.modules()
        if type(part).__name__ in routing.ROUTERS
    ]


@contextmanager
def noted(model: PolicyModel, experts: Experts) -> Iterator[None]:
    """Writes down what the routers choose."""
    hooks = [
        router.register_forward_hook(lambda m, i, out, at=at: experts.__setitem__((slice(None), at), out[2].numpy()))
        for at, router in routers(model)
    ]
    yield
    for hook in hooks:
        hook.remove()


def own_experts(model: PolicyModel, row: Row) -> Experts:
    experts = np.zeros((len(row.tokens_T), 2, 2), dtype=np.int64)
    with noted(model, experts):
        results(model, row)
    return experts


def others(row: Row) -> Experts:
    """Two different experts for each token and layer."""
    first = np.random.default_rng(0).integers(0, 6, (len(row.tokens_T), 2, 1))
    return np.concatenate([first, (first + 1 + first % 4) % 6], axis=2)


def test_the_models_own_experts_change_nothing(model: PolicyModel) -> None:
    row = row_of()
    expected = results(model, row)
    assert all(map(torch.equal, results(model, row, own_experts(model, row)), expected))
    assert all(map(torch.equal, results(model, row, np.full((len(row.tokens_T), 2, 2), -1)), expected))


def test_other_experts_are_those_of_a_model_that_is_made_to_choose_them(model: PolicyModel) -> None:
    row = row_of()
    experts = others(row)
    mine = results(model, row, experts)
    assert (mine[0] - results(model, row)[0]).abs().max() > 1e-3

    # torch.topk among all experts gives ours: what the model makes of them is its own code.
    topk = torch.topk
    chosen = iter([torch.from_numpy(experts[:, at]) for at, _ in routers(model)])

    def made_choice(scores: torch.Tensor, k: int, **options: Any) -> Any:
        if scores.dim() != 2 or scores.shape[1] != 6:
            return topk(scores, k, **options)
        index = next(chosen)
        return scores.gather(1, index), index

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "topk", made_choice)
        expected = results(model, row)
    for ours, theirs in zip(mine, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    assert all(map(torch.equal, results(model, row), results(model, row)))  # and nothing stays behind


def test_layers_that_are_computed_twice_choose_the_same_experts(model: PolicyModel) -> None:
    row = row_of()
    experts = others(row)
    expected = results(model, row, experts)
    model.checkpoint_above = 0
    for ours, theirs in zip(results(model, row, experts), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_each_branch_of_a_tree_has_the_experts_of_its_own_tokens(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, CONFIGS["Qwen3-MoE"])
    row = row_of()
    experts = others(row)
    logp_R = results(model, row, experts)[0]
    for at, one in enumerate(DATA):
        alone = row_of([one])
        mine = row.source_R == at
        last = row.place_R[mine].max()
        (run,) = (run for run in row.runs if run.start <= last < run.stop)
        path = run.path_L[: row.depth_T[last] + 1]
        torch.testing.assert_close(
            results(model, alone, experts[path])[0], logp_R[torch.from_numpy(mine)], atol=1e-5, rtol=1e-5
        )


def test_a_router_is_compiled_whole(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, CONFIGS["gpt-oss"])
    _, router = routers(model)[0]
    compiled = torch.compile(lambda x: router(x)[1], backend="eager", fullgraph=True, dynamic=True)
    x = torch.randn(7, 32)
    for experts in (None, torch.randint(0, 6, (7, 2))):
        router.replayed_TK = experts
        assert torch.equal(compiled(x), router(x)[1])


def test_experts_of_another_model_are_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, CONFIGS["Qwen3-MoE"])
    row = row_of()
    count = len(row.tokens_T)
    with pytest.raises(TrainingError, match="3 × 2 numbers a token, and this model has 2 layers with 2 experts"):
        results(model, row, np.zeros((count, 3, 2), dtype=np.int64))
    with pytest.raises(TrainingError, match="expert 6, and this model has 6"):
        results(model, row, np.full((count, 2, 2), 6))


def test_a_dense_model_replays_nothing(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, Qwen3Config(**SIZES))
    assert not model.replays
    row = row_of()
    assert all(map(torch.equal, results(model, row, np.zeros((9, 5, 1), dtype=np.int64)), results(model, row)))
