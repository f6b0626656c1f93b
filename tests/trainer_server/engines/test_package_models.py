"""Models of packages: their data are joined in order, checked, and converted; nothing is left half-made."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from trainer_server.engines.package_models import PACKAGE_MODELS, PackageModel, package_model
from trainer_server.engines.served_model import resolve
from trainer_server.planning.model_shape import KNOWN, ModelShape
from trainer_server.wire import ConfigError, EngineError

DATA = [b"GGUF", b"of several", b"parts"]
MODEL = PackageModel(
    "model",
    "lab/model",
    tuple(f"art-testbed-part{number}" for number in (1, 2, 10)),
    "1.0.0",
    "*/data/part*.bin",
    hashlib.sha256(b"".join(DATA)).hexdigest(),
    1,
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip takes as its only index. Their code would fail the test."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for package, data in zip(MODEL.packages, DATA, strict=True):
        name = package.replace("-", "_")
        with zipfile.ZipFile(folder / f"{name}-1.0.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "raise SystemExit('imported')")
            wheel.writestr(f"{name}/data/{name.rpartition('_')[2]}.bin", data)
            wheel.writestr(
                f"{name}-1.0.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0.0\n"
            )
            wheel.writestr(f"{name}-1.0.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def _left(cache: Path) -> set[str]:
    return {path.name for path in (cache / "models").iterdir() if path.suffix != ".lock"}


def test_the_parts_are_joined_checked_and_converted_once(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[bytes] = []

    def convert(self: PackageModel, gguf: Path, to: Path) -> None:
        joined.append(gguf.read_bytes())
        to.mkdir()
        if len(joined) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(PackageModel, "_convert", convert)
    with pytest.raises(KeyboardInterrupt):
        MODEL.ensure(tmp_path / "cache")
    assert _left(tmp_path / "cache") == set()
    directory = MODEL.ensure(tmp_path / "cache")
    assert MODEL.ensure(tmp_path / "cache") == directory
    assert joined == [b"".join(DATA)] * 2
    assert _left(tmp_path / "cache") == {"model-1.0.0-1"}

    other = replace(MODEL, name="other", digest="0" * 64)
    with pytest.raises(EngineError, match=f"sha256 {MODEL.digest} and not 0000"):
        other.ensure(tmp_path / "cache")
    assert _left(tmp_path / "cache") == {"model-1.0.0-1"}
    assert len(joined) == 2


def test_without_an_index_the_error_says_what_is_missing(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(EngineError, match=r"(?s)art-testbed-part1==1\.0\.0.*A package index has to be in reach"):
        MODEL.ensure(tmp_path / "cache")
    assert _left(tmp_path / "cache") == set()


def test_names_of_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"testbed:qwen: there is no such model .*testbed:qwen2\.5-0\.5b"):
        resolve("testbed:qwen", tmp_path)
    assert package_model("lab/open") is None


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("embedded", "SmolLM2-135M"),
        ("testbed:qwen2.5-0.5b", "Qwen2.5-0.5B"),
        ("testbed:qwen2.5-1.5b", "Qwen2.5-1.5B"),
        ("testbed:gemma3-270m", "Gemma-3-270M"),
    ],
)
def test_plan_knows_their_shapes(model: str, known: str) -> None:
    assert ModelShape.find(model) == KNOWN[known]
    assert len(PACKAGE_MODELS[model].digest) == 64
