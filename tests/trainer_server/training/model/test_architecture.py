"""The trial of shared rows: what may cost the sharing, what may not, and where the reason is found."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Llama4TextConfig, PretrainedConfig

from tests.support.training.models import ARCHITECTURES, tiny_model
from trainer_server.training.model import attention
from trainer_server.training.model.architecture import try_attention, unpackable
from trainer_server.training.model.head import HeadLogprobs
from trainer_server.training.model.policy import PolicyModel
from trainer_server.wire import TrainingError


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    where = tmp_path_factory.mktemp("model")
    tiny_model(where, ARCHITECTURES["llama"])
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)


def trial(base: Any, disturb: Callable[[], None]) -> str | None:
    """The trial with attention that does something else first."""

    def attend(*args: Any) -> torch.Tensor:
        disturb()
        return attention._attend(*args)

    attention.register("art_disturbed", attend)
    base.set_attn_implementation("sdpa")
    return try_attention(base, "art_disturbed", attention.Layout.of, HeadLogprobs)


def raising(error: Exception) -> Callable[[], None]:
    def disturb() -> None:
        raise error

    return disturb


def test_warnings_cost_nothing_where_warnings_are_errors(base: Any) -> None:
    def warn() -> None:
        warnings.warn("TF32 is about to change", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("error")
        assert trial(base, warn) is None
    assert "TF32" in str(seen[0].message)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("NoValidChoicesError: No choices to select"),
        OSError("no space left for compiled kernels"),
        UserWarning("somebody raised a warning"),
        ValueError("a kernel's block size"),
    ],
)
def test_an_error_that_says_nothing_about_the_model_is_raised(error: Exception, base: Any) -> None:
    base.train()
    with pytest.raises(TrainingError, match=r"trial of .* LlamaForCausalLM .* failed: .*" + str(error)[:12]) as raised:
        trial(base, raising(error))
    assert raised.value.__cause__ is error
    assert base.config._attn_implementation == "sdpa"
    assert base.training


def test_a_device_without_room_is_no_reason_either(base: Any) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        trial(base, raising(torch.OutOfMemoryError("no room")))


@pytest.mark.parametrize("kind", [TrainingError, NotImplementedError, TypeError, AttributeError])
def test_a_model_that_cannot_take_the_tree_has_a_reason_that_is_logged(
    kind: type[Exception], base: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reason = trial(base, raising(kind("no such argument: tree")))
    assert reason is not None
    assert "no such argument: tree" in reason
    assert base.config._attn_implementation == "sdpa"
    if kind is not TrainingError:
        assert "cannot take rows of several completions" in caplog.text
        assert "Traceback" in caplog.text


def test_metrics_say_whether_rows_are_shared_and_why_not(tmp_path: Path) -> None:
    tiny_model(tmp_path, ARCHITECTURES["llama"])
    model = PolicyModel(str(tmp_path), dtype=torch.float32, device="cpu", rest=True)
    assert model.sharing == {}
    model.wake()
    assert model.sharing == {"rows_shared": True}
    model.unshared_because = "layers of the kind conv"
    assert model.sharing == {"rows_shared": False, "rows_unshared_because": "layers of the kind conv"}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, None),
        ({"attn_temperature_tuning": True}, "attention whose temperature follows from a token's place in a row"),
        ({"attn_temperature_tuning": False}, None),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layers of the kind chunked_attention"),
        ({"use_bidirectional_attention": True}, "attention in both directions"),
        ({"use_bidirectional_attention": "vision"}, None),
        ({"mamba_d_state": 8}, "recurrent layers (mamba_d_state)"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
            "rotary embeddings of the kind dynamic, which depend on the length of a row",
        ),
    ],
)
def test_what_keeps_completions_from_sharing_rows_is_read_from_the_configuration(
    more: dict[str, Any], reason: str | None
) -> None:
    config = PretrainedConfig()
    for name, value in more.items():
        setattr(config, name, value)
    assert unpackable(config) == reason


def test_llama_4_shares_no_rows_for_two_reasons() -> None:
    """Where its layers are not chunked, its temperatures still count places."""
    assert unpackable(Llama4TextConfig()) == "layers of the kind chunked_attention"
    plain = Llama4TextConfig(num_hidden_layers=2, layer_types=["full_attention"] * 2)
    assert "temperature" in (unpackable(plain) or "")
    assert unpackable(Llama4TextConfig(**{**plain.to_dict(), "attn_temperature_tuning": False})) is None


def test_recurrent_layers_that_begin_a_branch_with_a_state_share_rows() -> None:
    config = PretrainedConfig()
    config.layer_types = ["linear_attention", "full_attention"]
    assert unpackable(config) == "layers of the kind linear_attention"
    assert unpackable(config, by_segments=True) is None
