"""What tells adapters apart."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from trainer_server.engines.adapter_files import FILES, adapter_files, is_copy


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    directory = tmp_path / "versions" / "1"
    directory.mkdir(parents=True)
    for name in FILES:
        (directory / name).write_text(name)
    return directory


def test_files_have_their_sizes_and_checksums(adapter: Path) -> None:
    found = adapter_files(adapter)
    assert [(file.name, file.size, file.sha256) for file in found.files] == [
        (name, len(name), hashlib.sha256(name.encode()).hexdigest()) for name in FILES
    ]


def test_a_file_that_changed_gives_another_digest(adapter: Path) -> None:
    before = adapter_files(adapter)
    (adapter / FILES[1]).write_text("x" * len(FILES[1]))
    os.utime(adapter / FILES[1], (1, 1))
    assert adapter_files(adapter).digest != before.digest
    assert adapter_files(adapter).files[0] == before.files[0]


def test_an_engine_s_directory_is_a_copy_by_its_name(adapter: Path) -> None:
    digest = adapter_files(adapter).digest
    assert is_copy(str(adapter), adapter)
    assert is_copy(f"/elsewhere/{digest}", adapter)
    assert not is_copy(f"/elsewhere/{digest[::-1]}", adapter)
    assert not is_copy("/elsewhere/versions/1", adapter)
    (adapter / FILES[0]).unlink()
    assert not is_copy(f"/elsewhere/{digest}", adapter)
