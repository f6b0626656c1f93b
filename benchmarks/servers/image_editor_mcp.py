"""truffle-ai-image-editor-mcp on a directory of pictures: the photographs of a small market."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import PRODUCTS


def make_pictures(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of names, sizes and colours.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"pictures-{seed}"), where / "pictures"
    root.mkdir()
    for name in rng.sample(PRODUCTS, 6):
        width, height = rng.randrange(60, 200, 10), rng.randrange(60, 200, 10)
        (root / f"{name}.png").write_bytes(_png(width, height, rng))
    return root


def _png(width: int, height: int, rng: random.Random) -> bytes:
    """A picture with a coloured frame."""
    inside, frame = (bytes(rng.randrange(256) for _ in range(3)) for _ in range(2))
    edge = b"\0" + frame * width
    row = b"\0" + frame * 5 + inside * (width - 10) + frame * 5
    pixels = edge * 5 + row * (height - 10) + edge * 5

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(pixels)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


SERVER = BenchmarkServer(
    "image-editor-mcp",
    lambda: [pypi("truffle-ai-image-editor-mcp", "truffle-ai-image-editor-mcp==1.0.1", "mcp<2")],
    make_pictures,
    {"HOME": "{world}"},
    use="seen",
)
