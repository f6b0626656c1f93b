"""What the machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_server.process import hardware


@pytest.mark.parametrize(("visible", "count"), [("0", 1), ("0, 2,3", 3), ("", 0), ("-1", 0), ("GPU-8a,GPU-9b", 2)])
def test_gpus_that_this_process_may_use_are_counted(visible: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "flavour", lambda: "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware.gpu_count() == count
    monkeypatch.setattr(hardware, "flavour", lambda: "cpu")
    assert hardware.gpu_count() == 0


@pytest.mark.parametrize(
    ("listed", "dtype"),
    [
        ("flags\t\t: fpu sse2 avx2 f16c", "float32"),
        ("flags\t\t: fpu avx2 avx512f avx512bw", "float32"),
        ("flags\t\t: fpu avx2 avx512f avx512_bf16", "bfloat16"),
        ("Features\t: fp asimd bf16 i8mm", "bfloat16"),
        ("Features\t: fp asimd", "float32"),
        ("Hardware\t: unknown", "bfloat16"),
    ],
)
def test_a_processor_without_instructions_for_bf16_computes_in_fp32(listed: str, dtype: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{listed}\n\nprocessor\t: 1\n{listed}\n")
    assert hardware.cpu_dtype(tmp_path / "cpuinfo") == dtype
    assert hardware.cpu_dtype(tmp_path / "none") == "bfloat16"
