"""What is written in the files of a home."""

from __future__ import annotations

import gzip
import subprocess
import tempfile
import zlib
from pathlib import Path

from pyarrow import parquet


def files_with(home: Path, mark: str, *, tokens: bool = True) -> list[str]:
    """Files of a home in which a text stands: as it is, or in compressed records.

    Args:
        home: The home. Its server may run in this process: the files are copied by another process, because a process
            that opens and closes a database's files by itself loses SQLite's locks on them.
        mark: The text.
        tokens: Look also for the tokens of the tiny model, which are the numbers of characters.
    """
    wanted = [mark.encode()]
    if tokens:
        wanted += [between.join(str(ord(char)) for char in mark).encode() for between in (", ", ",")]
    found = []
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "home"
        copied = subprocess.run(["cp", "-r", home, copy], capture_output=True, text=True, env={"LC_ALL": "C"})
        gone = [line for line in copied.stderr.splitlines() if "No such file" not in line]
        assert not gone, gone  # what the server deletes meanwhile need not be looked at
        for path in sorted(path for path in copy.rglob("*") if path.is_file()):
            content = path.read_bytes()
            if path.suffix == ".gz":
                content += gzip.decompress(content)
            if path.suffix == ".parquet":
                content += str(parquet.read_table(path).to_pylist()).encode()
            texts = [content, *_records(content)]
            if any(text in one for text in wanted for one in texts):
                found.append(path.relative_to(copy).as_posix())
    return found


def _records(content: bytes) -> list[bytes]:
    """What zlib's records in a file say, as far as each stands in one piece."""
    found, at = [], content.find(b"x\x9c")
    while at >= 0:
        try:
            found.append(zlib.decompressobj().decompress(content[at : at + 2**20]))
        except zlib.error:
            pass
        at = content.find(b"x\x9c", at + 1)
    return found
