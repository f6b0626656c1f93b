"""What vLLM's log says: why it ended, by the first error of whichever process, and the phases of its start."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trainer_server.engines.vllm.process import StartPhases, crash_reason
from trainer_server.process.child import Child

CORE = "(EngineCore pid=7) ERROR 11-22 11:23:45 [core.py:402] "
FOLLOWING = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [f"{CORE}Traceback (most recent call last):", f"{CORE}ValueError: no KV cache", FOLLOWING],
            "ValueError: no KV cache",
        ),
        (["(APIServer pid=1) TypeError: --tool-call-parser x", FOLLOWING], "TypeError: --tool-call-parser x"),
        (
            ["torch.OutOfMemoryError: CUDA out of memory. Tried", FOLLOWING],
            "torch.OutOfMemoryError: CUDA out of memory. Tried",
        ),
        (["(Worker pid=2) INFO 11-22 [a.py:1] Error: 0 of them", FOLLOWING], None),
        ([], None),
    ],
)
def test_the_first_error_is_the_cause(lines: list[str], expected: str | None) -> None:
    assert crash_reason("\n".join(lines)) == expected


def test_a_start_on_a_gpu_tells_its_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child("engine", ["true"], tmp_path, {})
    child.log.parent.mkdir(exist_ok=True)
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    phases, begun = StartPhases(child), []
    for seconds, line in (
        (2.0, "INFO [gpu_model_runner.py:5040] Starting to load model Qwen/Qwen3-0.6B..."),
        (12.0, "INFO [backends.py:1167] Dynamo bytecode transform time: 4.21 s"),
        (50.0, "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/51"),
        (50.5, "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   4%|          | 2/51"),
    ):
        now[0] = seconds
        with child.log.open("a") as log:
            log.write(line + "\n")
        begun.append(phases.advance())
    assert begun == ["weights", "compilation", "CUDA graphs", None]
    now[0] = 71.0
    assert phases.summary() == ": weights 10 s, compilation 38 s, CUDA graphs 21 s"


def test_a_start_that_compiles_nothing_has_no_phases_to_sum_up(tmp_path: Path) -> None:
    child = Child("engine", ["true"], tmp_path, {})
    child.log.parent.mkdir(exist_ok=True)
    child.log.write_text("INFO [cpu_model_runner.py:68] Starting to load model /m...\n")
    phases = StartPhases(child)
    assert phases.advance() == "weights"
    assert phases.summary() == ""
