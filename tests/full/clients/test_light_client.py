"""`pip install .` in an empty environment: the client works and brings no torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testbed.environments import copy_environment, pip
from tests.support.client_environments import ROOT, client_environment
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of nothing but `pip install .`: what it needs from the cache, the client itself as it is now."""
    made = copy_environment(client_environment(), tmp_path_factory.mktemp("light") / "venv")
    pip(made, "install", "-q", "--no-compile", "--no-deps", "--force-reinstall", str(ROOT))
    return made


def test_nothing_heavy_is_installed_or_imported(binaries: Path) -> None:
    code = (
        "import sys, importlib.util, art_langgraph, art_mcp\n"
        "heavy = ('torch', 'transformers', 'vllm', 'peft', 'trl', 'fastapi', 'litellm')\n"
        "print([name for name in heavy if name in sys.modules or importlib.util.find_spec(name)])"
    )
    done = subprocess.run([str(binaries / "python"), "-c", code], capture_output=True, text=True, cwd="/")
    assert done.stdout.strip() == "[]", done.stderr


def test_the_program_explains_itself_and_what_is_missing(binaries: Path, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(binaries / "art-langgraph"), *words], capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )  # fmt: skip

    assert "quickstart" in run("--help").stdout
    for command in ("serve", "quickstart"):
        assert run(command, "--help").returncode == 0
        without = run(command)
        assert without.returncode != 0
        assert "art-langgraph[server" in without.stderr + without.stdout, without.stderr
        assert "Traceback" not in without.stderr + without.stdout
    examined = run("doctor")
    assert examined.returncode == 1
    assert "failed  trainer: not installed: fastapi" in examined.stdout
    assert "Traceback" not in examined.stderr + examined.stdout
