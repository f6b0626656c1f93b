"""torch for CPUs, from two package indexes on loopback: one as the public one is, one as PyTorch's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.environments import copy_environment
from tests.support.package_index import PackageIndex, package_index, small_wheel
from trainer_server.engines.vllm.install import CPU_REQUIREMENT
from trainer_server.engines.vllm.install import install as install_engine
from trainer_server.process.cpu_torch import VERSION, install

CPU_VERSION = f"{VERSION}+cpu"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the public index has, and in `pytorch/` what PyTorch's has besides."""
    folder = tmp_path_factory.mktemp("wheels")
    small_wheel(folder, "torch", VERSION, "cuda-toolkit")
    small_wheel(folder, "torchvision", "0.28.0", f"torch=={VERSION}")
    name, _, version = CPU_REQUIREMENT.partition("==")
    small_wheel(folder, name, version, f"torch=={CPU_VERSION}", "torchvision", "sympy")
    small_wheel(folder, "sympy", "1.14.0")
    (folder / "pytorch").mkdir()
    small_wheel(folder / "pytorch", "torch", CPU_VERSION, "sympy")
    small_wheel(folder / "pytorch", "sympy", "1.13.3")
    return folder


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` directory of an environment with pip alone."""
    where = tmp_path_factory.mktemp("empty") / "environment"
    subprocess.run([sys.executable, "-m", "venv", where], check=True)
    return where / "bin"


@pytest.fixture
def python(empty_environment: Path, tmp_path: Path) -> str:
    return str(copy_environment(empty_environment, tmp_path / "my environment") / "python")


@pytest.fixture
def public(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """The index of pip's settings, of which there are no others."""
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with package_index(wheels.glob("*.whl")) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


@pytest.fixture
def pytorch(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    with package_index((wheels / "pytorch").glob("*.whl")) as index:
        monkeypatch.setenv("ART_TORCH_INDEX", index.url)
        yield index


def versions(python: str) -> dict[str, str]:
    done = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True)
    return dict(line.split("==") for line in done.stdout.split() if "==" in line)


def test_torch_comes_from_its_own_index_and_nothing_else_does(
    python: str, public: PackageIndex, pytorch: PackageIndex
) -> None:
    lines = list[str]()
    install(python, lines.append)
    assert versions(python) == {"torch": CPU_VERSION}
    assert pytorch.projects == ["torch"]
    assert pytorch.url in lines[-1]


def test_the_index_is_not_asked_where_pip_finds_torch_or_has_it(
    python: str, wheels: Path, public: PackageIndex, pytorch: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels / "pytorch"))
    install(python, lambda _: None)
    assert versions(python) == {"torch": CPU_VERSION}
    public.projects.clear()
    install(python, lambda _: None)
    assert (public.projects, pytorch.projects) == ([], [])


def test_an_index_that_cannot_be_reached_is_named_with_what_helps(
    python: str, public: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_TORCH_INDEX", "http://me:secret@127.0.0.1:9/whl/cpu")
    with pytest.raises(RuntimeError, match=r"nor on http://127\.0\.0\.1:9/whl/cpu:(.*\n)+.*ART_TORCH_INDEX") as raised:
        install(python, lambda _: None)
    assert "secret" not in str(raised.value)


@pytest.mark.slow
def test_the_engine_for_cpus_is_installed_with_it(tmp_path: Path, public: PackageIndex, pytorch: PackageIndex) -> None:
    installation = install_engine(tmp_path / "cache", kind="cpu")
    name, _, version = CPU_REQUIREMENT.partition("==")
    assert versions(str(installation.directory / "bin" / "python")) == {
        "torch": CPU_VERSION,
        name: version,
        "sympy": "1.14.0",  # of the public index
    }
