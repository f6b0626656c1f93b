"""The files of an adapter, as engines on other machines fetch them: names, sizes, checksums."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from trainer_server.wire import AdapterFile, AdapterFiles

FileName = Literal["adapter_config.json", "adapter_model.safetensors"]
"""A file of an adapter in PEFT's format."""
FILES: tuple[FileName, ...] = get_args(FileName)


def adapter_files(directory: Path) -> AdapterFiles:
    """The files of an adapter. They are read once, unless they change.

    Raises:
        OSError: A file is gone, or cannot be read.
    """
    files = [_file(directory / name) for name in FILES]
    text = "".join(f"{file.name} {file.size} {file.sha256}\n" for file in files)
    return AdapterFiles(digest=hashlib.sha256(text.encode()).hexdigest(), files=files)


def is_copy(root: str, directory: Path) -> bool:
    """Whether an engine that reads an adapter from `root` has the adapter of a directory of this machine.

    It has if it reads that directory, or one that it fetched, which has the digest as its name.
    """
    if root == str(directory):
        return True
    try:
        return Path(root).name == adapter_files(directory).digest
    except OSError:
        return False


def _file(path: Path) -> AdapterFile:
    about = path.stat()
    return AdapterFile(
        name=path.name, size=about.st_size, sha256=_sha256(path, about.st_ino, about.st_mtime_ns, about.st_size)
    )


@lru_cache(maxsize=1024)
def _sha256(path: Path, _inode: int, _time: int, _size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
