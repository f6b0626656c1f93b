"""`make setup engine` on a machine with the public package index and PyTorch's, and with no settings of pip's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.package_index import package_index
from trainer_server.engines.vllm.install import CPU_REQUIREMENT
from trainer_server.process.cpu_torch import VERSION
from trainer_server.process.hardware import flavour

ROOT = Path(__file__).parents[2]
TORCH = f"torch=={VERSION}+cpu"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.servers,
    pytest.mark.skipif(flavour() == "cuda", reason="torch for CPUs is for machines without a GPU"),
]


@pytest.fixture
def wheels(tmp_path: Path) -> Iterator[Path]:
    """All that .venv and the engine are made of, downloaded with the settings of pip on this machine."""
    folder = tmp_path / "wheels"
    download = [sys.executable, "-m", "pip", "download", "-q", "--progress-bar", "off", "-d", str(folder)]
    if subprocess.run([*download, "--no-deps", TORCH], capture_output=True).returncode:
        pytest.skip(f"{TORCH} for this Python is not where pip looks on this machine")
    versions = ["-c", str(ROOT / ".ci" / "versions.txt")]
    project = f"{ROOT}[server,quickstart,dev]"
    subprocess.run([*download, *versions, TORCH, project, "pip", "setuptools", "wheel"], check=True)
    subprocess.run([*download, "--find-links", str(folder), CPU_REQUIREMENT], check=True)
    yield folder
    shutil.rmtree(tmp_path)  # several GB, of which pytest would keep those of three runs


def test_both_environments_are_made_of_two_indexes(tmp_path: Path, wheels: Path) -> None:
    project = tmp_path / "my project"
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).strip("\0").split("\0"):
        if (ROOT / name).is_file():  # and not removed since
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, project / name)
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE", "VIRTUAL_ENV"))
    }
    of_pytorch = set(wheels.glob("torch-*+cpu-*.whl"))
    with (
        package_index(set(wheels.iterdir()) - of_pytorch) as public,
        package_index(of_pytorch) as pytorch,
    ):
        environ |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": public.url, "PIP_NO_CACHE_DIR": "1"}
        environ |= {"ART_TORCH_INDEX": pytorch.url, "ART_CACHE": str(tmp_path / "cache")}
        subprocess.run(["make", "engine", f"PYTHON={sys.executable}"], cwd=project, env=environ, check=True)
        assert pytorch.projects == ["torch", "torch"]
    for python in (project / ".venv" / "bin" / "python", tmp_path / "cache" / "engine" / "bin" / "python"):
        code = "import torch; print(torch.__version__, torch.version.cuda)"
        assert subprocess.check_output([python, "-c", code], text=True).split() == [f"{VERSION}+cpu", "None"]
