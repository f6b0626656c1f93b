"""The experts of a mixture, in vLLM's encoding."""

from __future__ import annotations

import io
from base64 import b64encode
from typing import Any

import numpy as np


def as_vllm_sends(array: Any) -> str:
    """Text of an .npy file, as `numpy2base64` of vLLM makes it."""
    with io.BytesIO() as buffer:
        np.save(buffer, array, allow_pickle=False)
        return b64encode(buffer.getvalue()).decode()
