"""The packed tree on a GPU: FlexAttention, forward and backward, against the stock model there, and compiled once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PretrainedConfig, Qwen3Config

from tests.support.training.models import SPEC, Data, stock_weights, weight_of
from tests.support.training.models import packed as pack_data
from trainer_server.training.model.policy import PolicyModel

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: FlexAttention has no backward on CPUs"),
    pytest.mark.filterwarnings("default"),  # torch's compiler warns of TF32 and of what torch gives up
]

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "Llama": LlamaConfig(**SIZES),
    "Qwen3": Qwen3Config(**SIZES),
    "Mistral, window": MistralConfig(**SIZES, sliding_window=100),
}


def tree(length: int) -> Data:
    generator = torch.Generator().manual_seed(length)
    prompt, *ends = (torch.randint(512, (n,), generator=generator).tolist() for n in (length, 70, 131, 5))
    return [(prompt, end) for end in ends]


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_and_gradients_are_those_of_the_stock_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[name]).save_pretrained(tmp_path)
    ours = PolicyModel(str(tmp_path), dtype=torch.float32, device="cuda")
    assert ours.unshared_because is None, "a tree is not even tried here"
    ours.initialise(SPEC)
    lora = LoraConfig(r=SPEC.rank, lora_alpha=int(SPEC.alpha), target_modules=list(SPEC.targets))
    stock = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), lora).cuda()
    theirs = stock_weights(stock)
    with torch.no_grad():
        for key, weight in ours.parameters():
            weight.normal_(std=0.1)
            theirs[key].copy_(weight)
    data = tree(300)
    total, expected_total, gap = torch.zeros((), device="cuda"), torch.zeros((), device="cuda"), 0.0
    for row in pack_data(data).rows:
        logp_R, _ = ours.logprobs(row, torch.ones(len(row.target_R)))
        for i, j, logp in zip(row.source_R.tolist(), row.offset_R.tolist(), logp_R, strict=True):
            total = total + logp * weight_of(i, j)
            prompt, end = data[i]
            if j:  # once for each sequence
                continue
            logits = stock(input_ids=torch.tensor([[*prompt, *end][:-1]], device="cuda"), use_cache=False).logits[0]
            chosen = logits[len(prompt) - 1 :].log_softmax(-1)[range(len(end)), end]
            mine = logp_R[torch.from_numpy(row.source_R == i)]
            gap = max(gap, float((chosen - mine).abs().max()))
            expected_total = expected_total + sum(one * weight_of(i, at) for at, one in enumerate(chosen))
    found = torch.autograd.grad(total, [weight for _, weight in ours.parameters()])
    expected = torch.autograd.grad(expected_total, list(theirs.values()))
    mine_all, theirs_all = (torch.cat([one.flatten() for one in grads]) for grads in (found, expected))
    assert gap <= 1e-4
    assert float((mine_all - theirs_all).norm() / theirs_all.norm()) <= 1e-4


def test_rows_of_other_lengths_compile_nothing(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    AutoModelForCausalLM.from_config(CONFIGS["Llama"]).save_pretrained(tmp_path)
    model = PolicyModel(str(tmp_path), device="cuda")
    model.initialise(SPEC)

    def compute(length: int) -> None:
        for row in pack_data(tree(length)).rows:
            model.logprobs(row, torch.ones(len(row.target_R)))[0].sum().backward()

    for length in (300, 700):
        compute(length)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0
    for length in (150, 333, 1000, 1999):
        compute(length)
    assert counters["stats"]["unique_graphs"] == graphs
