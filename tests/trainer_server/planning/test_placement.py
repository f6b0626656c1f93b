"""What `serve` does with GPUs that no flag speaks of: the plan becomes its options, and what users gave stays."""

from __future__ import annotations

import json
import logging
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainer_server.common import Home
from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.vllm.parsers import argument
from trainer_server.planning.model_shape import KNOWN
from trainer_server.planning.placement import place
from trainer_server.planning.plan import GIB
from trainer_server.server.config import ServerConfig
from trainer_server.server.server import plan_gpus
from trainer_server.wire import ConfigError

UTILIZATION, REQUESTS = "--gpu-memory-utilization", "--max-num-seqs"


def gpus(count: int, gib: float, used: float = 0.0) -> dict[str, tuple[int, int]]:
    return {str(at): (int(used * GIB), int(gib * GIB)) for at in range(count)}


@pytest.fixture(autouse=True)
def main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with enough of it."""
    monkeypatch.setattr("trainer_server.planning.placement.main_memory", lambda: 256 * GIB)


@pytest.fixture
def base(tmp_path: Path) -> ServedModel:
    """The configuration of Qwen3-8B, without weights."""
    shape = KNOWN["Qwen3-8B"]
    config = {
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden_size, "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.key_heads, "head_dim": shape.head_size,
        "vocab_size": shape.vocabulary, "tie_word_embeddings": shape.tied,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    return ServedModel("Qwen3-8B", str(tmp_path))


def options(base: ServedModel, **settings: Any) -> ServerConfig:
    return ServerConfig(Home(Path(base.path) / "home"), model=base.name, **settings)


def test_a_large_gpu_is_shared_and_the_trainer_has_its_part(
    base: ServedModel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        placed = place(options(base), base, gpus(1, 80))
    share, requests = (argument(placed.engine_args, flag) for flag in (UTILIZATION, REQUESTS))
    assert share is not None
    assert requests is not None
    assert placed.share_gpu is False
    assert (placed.engine_gpus, placed.trainer_gpus) == ((), None)
    left = 80 * (0.9 - float(share))
    assert "beside each other" in caplog.text
    assert left > 2 * KNOWN["Qwen3-8B"].parameters / GIB  # its weights alone
    assert 1 < int(requests) <= 512
    assert UTILIZATION in caplog.text


def test_a_smaller_one_is_used_by_turns_and_a_small_one_is_refused(base: ServedModel) -> None:
    placed = place(options(base), base, gpus(1, 48))
    assert placed.share_gpu is True
    with pytest.raises(ConfigError, match=r"does not fit 1 × 24 GiB.* It would with .*To try it anyway") as refusal:
        place(options(base), base, gpus(1, 24))
    words = str(refusal.value).rpartition("--engine-args ")[2]
    tried = options(base, engine_args=tuple(shlex.split(shlex.split(words)[0])))
    assert place(tried, base, gpus(1, 24)) == tried


def test_the_server_asks_for_the_plan_of_its_gpus(base: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    served = replace(options(base), model=base.path)
    monkeypatch.setattr("trainer_server.server.server.visible_gpus", lambda: gpus(1, 48))
    monkeypatch.setattr("trainer_server.server.server.flavour", lambda: "cpu")
    assert plan_gpus(served) == served
    monkeypatch.setattr("trainer_server.server.server.flavour", lambda: "cuda")
    assert plan_gpus(served).share_gpu is True


def test_turns_need_main_memory_for_both(base: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_server.planning.placement.main_memory", lambda: 16 * GIB)
    with pytest.raises(ConfigError, match="main memory, which has 16 GiB; both take 31"):
        place(options(base), base, gpus(1, 48))


@pytest.mark.parametrize("turns", [True, False])
def test_turns_are_as_the_user_says(base: ServedModel, turns: bool) -> None:
    assert place(options(base, share_gpu=turns), base, gpus(1, 80)).share_gpu is turns
    if not turns:
        with pytest.raises(ConfigError, match="does not fit 1 × 48 GiB"):
            place(options(base, share_gpu=False), base, gpus(1, 48))


def test_several_gpus_are_divided_by_their_names(base: ServedModel) -> None:
    four = dict(zip(("2", "3", "5", "7"), gpus(4, 80).values(), strict=True))
    placed = place(options(base), base, four)
    given = ",".join([*placed.engine_gpus, placed.trainer_gpus or ""]).split(",")
    assert given == ["2", "3", "5", "7"]
    assert not placed.share_gpu
    assert placed.trainer_processes == (placed.trainer_gpus or "").count(",") + 1


def test_memory_that_others_use_is_left_to_them(base: ServedModel) -> None:
    def share(used: float) -> float:
        return float(argument(place(options(base), base, gpus(1, 80, used)).engine_args, UTILIZATION) or 0)

    assert share(10.0) <= share(0.0) - 0.9 * 10 / 80 + 0.01


@pytest.mark.parametrize(
    "settings",
    [
        {"engine_args": (UTILIZATION, "0.3")},
        {"engine_args": ("--tensor-parallel-size=2",)},
        {"engine_gpus": ("0",)},
        {"trainer_gpus": "1"},
        {"engine_urls": ("http://127.0.0.1:1",)},
        {"engine": "module:factory"},
    ],
)
def test_flags_that_place_them_are_kept(base: ServedModel, settings: dict[str, Any]) -> None:
    given = options(base, **settings)
    assert place(given, base, gpus(2, 80)) == given


def test_flags_of_the_engine_win(base: ServedModel) -> None:
    placed = place(options(base, engine_args=(REQUESTS, "7", "--max-model-len", "4096")), base, gpus(1, 80))
    assert argument(placed.engine_args, REQUESTS) == "7"
    assert placed.engine_args[-2:] == ("--max-model-len", "4096")
    with pytest.raises(ConfigError, match="less than one request"):
        place(options(base, engine_args=("--max-model-len", "9000000")), base, gpus(1, 80))


def test_4_bit_weights_are_counted_and_never_take_turns(base: ServedModel) -> None:
    quantized = options(base, trainer_args=("--quantization", "4bit"))
    placed = place(quantized, base, gpus(1, 48))
    assert not placed.share_gpu


def test_a_model_that_cannot_be_calculated_is_served_with_a_warning(
    base: ServedModel, caplog: pytest.LogCaptureFixture
) -> None:
    config = Path(base.path) / "config.json"
    config.write_text(json.dumps({"num_experts": 8}))
    given = options(replace(base))
    assert place(given, base, gpus(1, 80)) == given
    assert "num_experts=8" in caplog.text


def test_adapters_of_experts_leave_less_to_vllm(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    mixture = ServedModel("mixture", str(tmp_path))

    def share(*args: str) -> float:
        placed = place(options(mixture, engine_args=args), mixture, gpus(1, 192))
        assert not placed.share_gpu
        return float(argument(placed.engine_args, UTILIZATION) or "nan")

    trainer = 16 * 48 * 128 * 16 * ((2048 + 2 * 768) + (768 + 2048)) / GIB  # of rank 16
    assert share() - share("--lora-target-modules", "q_proj", "experts") == pytest.approx(trainer / 192, abs=0.01)
