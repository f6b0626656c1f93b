"""The door for a new loss: defined outside the packages, registered by `serve --loss`, used for a real step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.support.losses import REINFORCE
from tests.support.servers.trainer_server import trainer_server_on
from trainer_server.common import Home
from trainer_server.engines.served_model import ServedModel
from trainer_server.jobs.trainer_process import TrainerSettings, command
from trainer_server.policies.store import OPTIMIZER
from trainer_server.training.grpo.loss import LOSSES, Loss, by_sequence, capped, check_config, loss_named, register_loss
from trainer_server.training.grpo.objective import Readouts, grpo_loss
from trainer_server.wire import ConfigError, GRPOConfig, TrainingError

DEFINITION = "reinforce=tests.support.losses:REINFORCE"


@pytest.fixture
def registered() -> Iterator[None]:
    register_loss(DEFINITION)
    yield
    del LOSSES["reinforce"]


@pytest.mark.usefixtures("registered")
def test_its_gradient_by_the_log_probs_is_the_closed_form() -> None:
    """loss = −1/S · Σ A · logp, so d loss / d logp = −A / S, whatever the ratio is."""
    config = GRPOConfig(loss_type="reinforce", importance_sampling_cap=None)
    logp_R = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    advantage_R = torch.tensor([2.0, 2.0, -1.0], dtype=torch.float64)
    completion_R, lengths_S = torch.tensor([0, 0, 1]), torch.tensor([2, 1])
    token_weight_R = loss_named("reinforce").token_weights(lengths_S, config)[completion_R]
    old_R, nan_R = torch.full((3,), -3.0), torch.full((3,), float("nan"))
    result = grpo_loss(logp_R, Readouts(old_R, nan_R, advantage_R, token_weight_R, completion_R), config)
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert result.loss.item() == pytest.approx(-(2 * -1.0 + 2 * -2.0 + -1 * -0.5) / 2)
    assert logp_R.grad is not None
    assert logp_R.grad.tolist() == pytest.approx([-1.0, -1.0, 0.5])
    assert result.low_R.tolist() == result.high_R.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.slow
def test_a_real_step_has_its_gradient(tmp_path: Path, base_model: Path) -> None:
    """Against −1/S · Σ A · log π of the stock model with PEFT's LoRA, one sequence at a time.

    The server passes `--loss` on to its trainer process. After one update AdamW's first moment is (1 − β1) · gradient.
    """
    with trainer_server_on(tmp_path, base_model, losses=(DEFINITION,)) as server, server.http() as http:
        assert http.post("/api/policies", json={"name": "p"}, timeout=900).status_code == 201  # the trainer starts
        sampled = [completion(http, text) for text in ("say ab", "say cde", "say f")]
        rewards = [1.0, 0.0, 0.5]
        trajectories = [
            {"id": str(number), "reward": reward, "completions": [row["id"]]}
            for number, (reward, row) in enumerate(zip(rewards, sampled, strict=True))
        ]
        config = {
            "loss_type": "reinforce",
            "scale_rewards": "none",
            "importance_sampling_cap": None,
            "max_logp_gap": None,
            "max_grad_norm": 1e9,
        }
        body = {"groups": [{"scenario_id": "s", "trajectories": trajectories}], "config": config}
        job = http.post("/api/policies/p/steps", json=body).json()
        job = http.get(f"/api/jobs/{job['id']}", params={"wait": 50}).json()
        assert (job["status"], job["error"]) == ("succeeded", None)

        body["config"] = {"loss_type": "reinforced"}
        refused = http.post("/api/policies/p/steps", json=body)
        assert refused.status_code == 422
        assert "'reinforced' is not known" in refused.text
        assert "sapo, reinforce;" in refused.text
        versions = server.home.policies / "p/versions"

    base = AutoModelForCausalLM.from_pretrained(str(base_model), dtype=torch.float32)
    model: Any = PeftModel.from_pretrained(base, str(versions / "0"), is_trainable=True)
    for row, reward in zip(sampled, rewards, strict=True):
        prompt, answer = row["prompt_token_ids"], row["token_ids"]
        logits_TV = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        logp_R = logits_TV.log_softmax(1).gather(1, torch.tensor(answer)[:, None])
        (-(reward - sum(rewards) / 3) * logp_R.sum() / 3).backward()
    expected = {name.replace(".default.", "."): w.grad for name, w in model.named_parameters() if w.requires_grad}
    moments = load_file(versions / "1" / OPTIMIZER)
    found = {name: moments[f"exp_avg.{name}"] / 0.1 for name in expected}
    assert any(gradient.any() for gradient in found.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def completion(http: httpx.Client, text: str) -> dict[str, Any]:
    """What the ledger has of an answer of `p`."""
    body = {"model": "p", "messages": [{"role": "user", "content": text}], "max_tokens": 20}
    answer = http.post("/v1/chat/completions", json=body).json()
    return dict(http.get(f"/api/completions/{answer['id']}").json())


def test_a_name_that_is_not_registered_is_refused_with_those_that_are() -> None:
    with pytest.raises(TrainingError, match=r"'dappo' is not known.*grpo, dr_grpo, dapo, bnpo, cispo, sapo; .*--loss"):
        loss_named("dappo")


@pytest.mark.parametrize("epsilon_high", [0.28, None, 0.99])
def test_a_capped_loss_needs_a_cap_of_the_ratio(monkeypatch: pytest.MonkeyPatch, epsilon_high: float | None) -> None:
    monkeypatch.setitem(LOSSES, "mine", Loss(by_sequence, capped))
    with pytest.raises(TrainingError, match=r"loss_type='mine' caps the ratio itself there; give 1 or more"):
        check_config(GRPOConfig(loss_type="mine", epsilon_high=epsilon_high))
    check_config(GRPOConfig(loss_type="mine", epsilon_high=1.0))
    for name in LOSSES.keys() - {"mine"}:
        check_config(GRPOConfig(loss_type=name))


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("mine", "give NAME=MODULE:ATTRIBUTE"),
        ("mine=module", "give NAME=MODULE:ATTRIBUTE"),
        ("mine=no_such_module:LOSS", "No module named 'no_such_module'"),
        ("mine=tests.support.losses:NOTHING", "has no attribute 'NOTHING'"),
        ("mine=tests.support.losses:plain", "is a function, not a trainer_server.training.grpo.loss.Loss"),
        ("dapo=tests.support.losses:REINFORCE", "there is a loss named 'dapo' already"),
    ],
)
def test_a_definition_that_cannot_be_registered_says_why(definition: str, words: str) -> None:
    before = dict(LOSSES)
    with pytest.raises(ConfigError, match=words):
        register_loss(definition)
    assert before == LOSSES
    assert REINFORCE not in LOSSES.values()


def test_the_server_passes_losses_on_to_its_trainer(tmp_path: Path) -> None:
    base = ServedModel("base", str(tmp_path))
    settings = TrainerSettings(home=Home(tmp_path), base=base, tokenizer="tok", losses=(DEFINITION,))
    assert command(settings)[-2:] == ["--loss", DEFINITION]
