"""An export into a directory that has files already: one model afterwards, or nothing written."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from art_langgraph.client.download import fetch
from trainer_server.wire import ConfigError, ServerError


def refused(answer: httpx.Response) -> ServerError:
    return ServerError("refused", status=answer.status_code)


async def export(directory: Path, *names: str) -> None:
    """Fetches an export that consists of these files, each with its own name in it."""
    await fetch_members(directory, *(member(name, size=len(name)) for name in names))


def member(name: str, **facts: Any) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    for key, value in facts.items():
        setattr(entry, key, value)
    return entry


async def fetch_members(directory: Path, *members: tarfile.TarInfo) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for entry in members:
            archive.addfile(entry, io.BytesIO(entry.name.encode()))
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=packed.getvalue()))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        await fetch(http, "/export", {}, directory, error_reader=refused, progress=False)


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


@pytest.mark.parametrize(
    "refused_member",
    [
        member("/etc/art"),
        member("../beside"),
        member("onnx/../../beside"),
        member("link", type=tarfile.SYMTYPE, linkname="/etc"),
        member("link", type=tarfile.LNKTYPE, linkname="README.md"),
        member("pipe", type=tarfile.FIFOTYPE),
    ],
    ids=lambda entry: f"{entry.name} {entry.type.decode()}",
)
async def test_what_no_export_has_is_not_unpacked(tmp_path: Path, refused_member: tarfile.TarInfo) -> None:
    """By our own check: Python 3.11.2, which Debian 12 has, knows no filter."""
    with pytest.raises(ConfigError, match=f"the server sent '{refused_member.name}', which is no file or folder"):
        await fetch_members(tmp_path / "export", member("README.md", size=9), refused_member)
    assert list(tmp_path.iterdir()) == []


async def test_folders_and_modes_of_an_archive_are_those_of_this_machine(tmp_path: Path) -> None:
    await fetch_members(tmp_path, member("onnx", type=tarfile.DIRTYPE, mode=0), member("onnx/a", size=6, mode=0o6777))
    assert (tmp_path / "onnx" / "a").read_text() == "onnx/a"
    assert (tmp_path / "onnx" / "a").stat().st_mode & 0o6111 == 0
