"""Why vLLM ended: the first error in its log, of whichever process."""

from __future__ import annotations

import pytest

from trainer_server.engines.vllm.process import crash_reason

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
