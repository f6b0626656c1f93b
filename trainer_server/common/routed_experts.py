"""The experts that a mixture chose, as vLLM sends them and as the ledger has them.

vLLM sends an .npy file of uint8 or uint16 in base64: tokens × layers × experts of a token. The ledger has the same
file, compressed. Its rows are those of prompt and answer, but for the last token, which nothing was computed from.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass

MOST_BYTES = 32 << 20
"""Of a file: 100,000 tokens of a model of 36 layers with 8 experts a token. Larger ones are not kept."""
MOST_TEXT = MOST_BYTES * 4 // 3
"""Of the same in base64."""
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '[|<](u[12])', 'fortran_order': False, "
    rb"'shape': \((\d{1,9}), (\d{1,9}), (\d{1,9})\), \} *\n",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ExpertsFile:
    """An .npy file. dtype: `u1` or `u2`. shape: tokens, layers, experts of a token. values: the array, row by row."""

    dtype: str
    shape: tuple[int, int, int]
    values: bytes

    @classmethod
    def parse(cls, file: bytes) -> ExpertsFile:
        """Raises ValueError for any other file."""
        if (match := _HEADER.match(file)) is None:
            raise ValueError("it is no .npy file of uint8 or uint16 with tokens × layers × experts")
        dtype, (tokens, layers, experts), values = match[1].decode(), map(int, match.groups()[1:]), file[match.end() :]
        if len(values) != tokens * layers * experts * int(dtype[1]):
            raise ValueError(f"it has {len(values)} bytes for {tokens} × {layers} × {experts} numbers")
        return cls(dtype, (tokens, layers, experts), values)


def pack_experts(field: object, tokens: int) -> str:
    """What the ledger keeps of `routed_experts` in a choice of vLLM's.

    Args:
        field: Its value.
        tokens: How many tokens prompt and answer have together.

    Raises:
        ValueError: It is no array of the experts of these tokens, or too large.
    """
    if not isinstance(field, str) or len(field) > MOST_TEXT:
        raise ValueError(f"it is no text of an .npy file of at most {MOST_BYTES} bytes")
    file = b64decode(field, validate=True)
    rows = ExpertsFile.parse(file).shape[0]
    if rows != tokens - 1:
        raise ValueError(f"it has {rows} rows for {tokens} tokens, of which the last has none")
    return b64encode(zlib.compress(file, 1)).decode()


def unpack_experts(text: str) -> ExpertsFile:
    """The experts in a row of the ledger.

    Raises:
        ValueError: It has something else there.
    """
    try:
        return ExpertsFile.parse(zlib.decompressobj().decompress(b64decode(text, validate=True), MOST_BYTES))
    except zlib.error as error:
        raise ValueError(f"it cannot be decompressed: {error}") from None
