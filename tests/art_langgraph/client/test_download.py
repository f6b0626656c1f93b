"""An export into a directory that has files already: one model afterwards, or nothing written."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import httpx
import pytest

from art_langgraph.client.download import fetch
from trainer_server.wire import ConfigError, ServerError


def refused(answer: httpx.Response) -> ServerError:
    return ServerError("refused", status=answer.status_code)


async def export(directory: Path, *names: str) -> None:
    """Fetches an export that consists of these files, each with its own name in it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()))
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=packed.getvalue()))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        await fetch(http, "/export", {}, directory, refused=refused, progress=False)


PEFT = ("README.md", "adapter_config.json", "adapter_model.safetensors")
MERGED = ("README.md", "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


async def test_an_export_takes_the_place_of_one_in_another_format(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for names in (PEFT, MERGED, ("README.md", "model.gguf"), ("README.md", "config.json", "model.safetensors"), PEFT):
        await export(tmp_path, *names)
        assert {one.name for one in tmp_path.iterdir()} == {*names, "mine.txt"}


async def test_a_folder_under_the_name_of_a_file_is_told_before_anything_is_written(tmp_path: Path) -> None:
    await export(tmp_path, *PEFT)
    (tmp_path / "config.json").mkdir()
    (tmp_path / "config.json" / "mine.txt").write_text("mine")
    with pytest.raises(
        ConfigError, match=r"config\.json is a folder, and the export has a file of that name: remove it"
    ):
        await export(tmp_path, *MERGED)
    assert {one.name for one in tmp_path.iterdir()} == {*PEFT, "config.json"}


async def test_folders_of_an_export_are_filled(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "mine.txt").write_text("mine")
    await export(tmp_path, "README.md", "onnx/model.onnx")
    assert {one.name for one in (tmp_path / "onnx").iterdir()} == {"mine.txt", "model.onnx"}
