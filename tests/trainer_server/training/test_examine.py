"""Whether a model can be trained, found out without its weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    DeepseekV3Config,
    FalconH1Config,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    PreTrainedTokenizerFast,
    T5Config,
    dynamic_module_utils,
)

from trainer_server.doctor.finding import State
from trainer_server.doctor.training import _model
from trainer_server.training.examine import examine

LLAMA = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=64)
HERMES = """{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for message in messages %}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{% endfor %}"""


def written(where: Path, config: object, template: str | None = HERMES) -> Path:
    config.save_pretrained(where)  # type: ignore[attr-defined]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, "a")), chat_template=template)
    tokenizer.save_pretrained(where)
    return where


def test_a_decoder_can_be_trained(tmp_path: Path) -> None:
    found = examine(written(tmp_path, LLAMA), 8)
    assert (found["architecture"], found["untrainable"], found["separate"]) == ("LlamaForCausalLM", None, None)
    ends = 4 * (32 + 32) + 3 * (32 + 48)
    assert (found["adapted"], found["parameters"]) == (14, 2 * 8 * ends)
    names = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
    assert next(finding.text for finding in _model(found, 8, {})).endswith(
        f"adapts 14 layers, with 0.0 M parameters: {names}"
    )
    shown = {"error": None, "tools": True, "calls": True, "results": True, "thoughts": True}
    assert found["template"] == shown


def test_of_a_mixture_of_experts_only_attention_is_adapted_and_doctor_says_so(tmp_path: Path) -> None:
    config = DeepseekV3Config(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=64,
        q_lora_rank=16,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
    )
    found = examine(written(tmp_path, config), 8)
    assert found["targets"] == ["o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa"]
    assert found["adapted"] == 2 * 4
    (said,) = (finding for finding in _model(found, 8, {}) if finding.check == "experts")
    assert said.state == State.warning
    assert said.text.endswith("only attention does: o_proj, q_a_proj, q_b_proj, kv_a_proj_with_mqa")
    dense = examine(written(tmp_path, LLAMA), 8)
    assert not [finding for finding in _model(dense, 8, {}) if finding.check == "experts"]


def test_known_recurrent_layers_share_rows_and_doctor_says_so_of_others(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    layers = ["conv", "full_attention"]
    known = Lfm2Config(**sizes, num_key_value_heads=2, layer_types=layers, vocab_size=64)
    assert examine(written(tmp_path / "known", known), 8)["separate"] is None
    unknown = FalconH1Config(**sizes, vocab_size=64, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8)
    examination = examine(written(tmp_path / "unknown", unknown), 8)
    assert "hybrid" in examination["separate"]
    assert "shared rows" in [finding.check for finding in _model(examination, 8, {}) if finding.state == State.warning]


def test_a_template_without_tools_is_noticed(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.content + '\n' }}{% endfor %}"
    shown = examine(written(tmp_path, LLAMA, template), 8)["template"]
    assert shown == {"error": None, "tools": False, "calls": False, "results": False, "thoughts": False}
    assert examine(written(tmp_path / "none", LLAMA, None), 8)["template"]["error"]


def test_recurrent_layers_cost_rows(tmp_path: Path) -> None:
    config = MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=64)
    found = examine(written(tmp_path, config), 8)
    assert "no layers of these names" in found["untrainable"]


def test_other_models_cannot_be_trained(tmp_path: Path) -> None:
    t5 = T5Config(d_model=32, num_layers=1, d_kv=8, num_heads=2, d_ff=32, vocab_size=64)
    assert "T5Config" in examine(written(tmp_path, t5), 8)["untrainable"]


@pytest.mark.parametrize("trusted", [False, True])
def test_code_of_the_model_runs_only_when_it_is_trusted(
    tmp_path: Path, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))  # not the user's
    where = written(tmp_path, LLAMA)
    config = json.loads((where / "config.json").read_text())
    own = {"model_type": "heron", "auto_map": {"AutoConfig": "heron.Heron"}, "architectures": ["HeronForCausalLM"]}
    (where / "config.json").write_text(json.dumps({**config, **own}))
    (where / "heron.py").write_text("raise RuntimeError('it ran')")
    found = examine(where, 8, trust_remote_code=trusted)
    assert ("it ran" if trusted else "trust_remote_code") in found["untrainable"]
