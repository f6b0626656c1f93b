"""Chunked log-probabilities and entropies equal those of all logits at once, gradients too."""

from __future__ import annotations

import pytest
import torch

from tests.support.engines.plugins import engine_plugin
from trainer_server.training.model import head
from trainer_server.training.model.head import HeadLogprobs, projection


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("use", ["logp", "entropy", "both"])
def test_values_and_gradients_equal_the_plain_computation(
    use: str, cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK", 3)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=generator, requires_grad=True)
    weight = torch.randn(11, 5, generator=generator)
    target = torch.randint(11, (7,), generator=generator)
    temperature = torch.rand(7, generator=generator) + 0.5
    by_logp, by_entropy = torch.randn(2, 7, generator=generator)

    logits = hidden @ weight.T
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    logp = torch.log_softmax(logits / temperature[:, None], -1)
    expected = logp.gather(1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1)
    found = HeadLogprobs.apply(hidden, weight, target, temperature, use != "logp", cap)
    gradients = []
    for chosen, entropy in (expected, found):
        loss = (chosen * by_logp).sum() * (use != "entropy") + (entropy * by_entropy).sum() * (use != "logp")
        gradients.append(torch.autograd.grad(loss, hidden)[0])
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
    assert torch.allclose(*gradients, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_half_precision_weights_are_not_rounded(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 64, generator=generator).to(dtype) for n in (40, 300))
    exact = hidden.double() @ weight.double().T
    assert ((hidden @ weight.T) - exact).abs().max() > 3e-3
    assert (projection(weight)(hidden) - exact).abs().max() < 1e-4
    assert torch.backends.mkldnn.matmul.fp32_precision == "none"


def test_the_engine_computes_logits_as_the_trainer_does() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 64, generator=generator).bfloat16() for n in (40, 300))
    logits = engine_plugin("art_precision").linear_fp32(hidden, weight.float())
    torch.testing.assert_close(logits, projection(weight)(hidden), rtol=0, atol=1e-4)
