"""What the machine has."""

from __future__ import annotations

import pytest

from trainer_server.process import hardware


@pytest.mark.parametrize(("visible", "count"), [("0", 1), ("0, 2,3", 3), ("", 0), ("-1", 0), ("GPU-8a,GPU-9b", 2)])
def test_gpus_that_this_process_may_use_are_counted(visible: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "flavour", lambda: "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware.gpu_count() == count
    monkeypatch.setattr(hardware, "flavour", lambda: "cpu")
    assert hardware.gpu_count() == 0
