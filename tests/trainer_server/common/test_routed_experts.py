"""The experts of mixtures: from vLLM's encoding to the ledger's and back, and nothing else."""

from __future__ import annotations

from base64 import b64encode

import numpy as np
import pytest

from tests.support.engines.experts import as_vllm_sends
from trainer_server.common.routed_experts import pack_experts, unpack_experts


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_what_is_kept_is_what_was_sent(dtype: str) -> None:
    sent = np.random.default_rng(0).integers(0, 200, (120, 3, 2)).astype(dtype)
    kept = unpack_experts(pack_experts(as_vllm_sends(sent), 121))
    assert kept.shape == (120, 3, 2)
    assert np.array_equal(np.frombuffer(kept.values, f"<{kept.dtype}").reshape(kept.shape), sent)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (7, "no text"),
        ("no base64!", "base64|Only|Non-base64"),
        (b64encode(b"something else").decode(), "no .npy file"),
        (as_vllm_sends(np.zeros((4, 2, 2), dtype=np.int64)), "no .npy file"),
        (as_vllm_sends(np.zeros((4, 2), dtype=np.uint8)), "no .npy file"),
        (as_vllm_sends(np.zeros((3, 2, 2), dtype=np.uint8)), "3 rows for 5 tokens"),
        (as_vllm_sends(np.zeros((4, 2, 2), dtype=np.uint8))[:-8], "12 bytes|11 bytes|10 bytes|9 bytes"),
    ],
)
def test_nothing_else_is_kept(sent: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        pack_experts(sent, 5)


def test_a_row_of_the_ledger_with_something_else_is_no_experts() -> None:
    with pytest.raises(ValueError, match="decompressed"):
        unpack_experts(b64encode(b"no zlib").decode())
