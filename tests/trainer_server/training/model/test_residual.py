"""The residual stream in fp32: closer to the model in fp32, and models that cannot have it are left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Olmo2Config

from tests.support.engines.plugins import engine_plugin
from trainer_server.training.model.precision import keep_fp32

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
TOKENS = torch.arange(100).view(2, 50) % 47


def deep(dtype: torch.dtype, seed: int) -> Any:
    """Thirty layers that each add as much as the embedding did, of the same bf16 weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(num_hidden_layers=30, initializer_range=0.1, **SIZES)
    return AutoModelForCausalLM.from_config(config).bfloat16().to(dtype)


def hidden_and_gradient(base: Any) -> tuple[torch.Tensor, torch.Tensor]:
    weight = base.get_decoder().layers[0].mlp.up_proj.weight
    hidden = base.get_decoder()(input_ids=TOKENS, use_cache=False).last_hidden_state
    (gradient,) = torch.autograd.grad(hidden.float().square().sum() / 2 + hidden.float().sum(), weight)
    return hidden.detach().float(), gradient.float()


def test_less_is_lost_to_rounding_and_gradients_stay() -> None:
    shares = []
    for seed in range(4):
        narrow, wide = deep(torch.bfloat16, seed), deep(torch.bfloat16, seed)
        assert keep_fp32(wide)
        truth, before, after = (hidden_and_gradient(base) for base in (deep(torch.float32, seed), narrow, wide))
        for exact, one, other in zip(truth, before, after, strict=True):
            lost, still_lost = (float((found - exact).norm() / exact.norm()) for found in (one, other))
            shares.append(still_lost / lost)
    # How much is left depends on the processor, which may round within its products of bf16 too.
    assert sum(shares) / len(shares) < 0.85, shares


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        (GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=0), torch.bfloat16),
        (Olmo2Config(num_hidden_layers=2, **SIZES), torch.bfloat16),  # its layers read the sum without a norm
        (LlamaConfig(num_hidden_layers=2, **SIZES), torch.float32),
    ],
)
def test_other_models_stay_as_they_were(config: Any, dtype: torch.dtype) -> None:
    base = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    before = base(input_ids=TOKENS).logits
    assert not keep_fp32(base)
    assert not any(module._forward_hooks for module in base.modules())
    assert torch.equal(base(input_ids=TOKENS).logits, before)


def test_the_engine_adds_without_rounding_too() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, generator=generator).bfloat16() for n in ((9, 64), (64,)))
    residual = torch.randn(9, 64, generator=generator)
    total = x.double() + residual.double()
    norm = total / (total.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    found, kept = engine_plugin("art_precision").add_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(kept.double(), total, rtol=0, atol=1e-6)
    torch.testing.assert_close(found, norm.bfloat16(), rtol=2**-7, atol=0)
    assert found.dtype is torch.bfloat16
