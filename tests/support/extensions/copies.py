"""The three packages in a folder of their own, from which extensions can be deleted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from trainer_server.common.extensions import Extension

ROOT = Path(__file__).parents[3]
PACKAGES = ("art_langgraph", "art_mcp", "trainer_server")
NO_EDITABLE_INSTALLATION = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
"""
"""An editable installation finds folders of the repository that a copy does not have."""


def copy_packages(folder: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package)
    for shared in ("tests", "testbed"):  # not the whole repository, which has the extensions
        (folder / shared).symlink_to(ROOT / shared)
    (folder / "sitecustomize.py").write_text(NO_EDITABLE_INSTALLATION)


def place_of(folder: Path, extension: Extension) -> Path:
    """The folder or file of an extension in a copy."""
    path = folder.joinpath(*extension.module.split("."))
    return path if path.is_dir() else path.with_suffix(".py")


def delete(folder: Path, extension: Extension) -> None:
    path = place_of(folder, extension)
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def run_in(folder: Path, *arguments: str, timeout: float = 600, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a copy, with its packages."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
