"""The trial of shared rows: what may cost the sharing, what may not, and where the reason is found."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.training.models import ARCHITECTURES, tiny_model
from trainer_server.training.model import attention
from trainer_server.training.model.architecture import try_attention
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
