"""Virtual environments of their own for tests: made once, kept under the cache, made anew when their recipe changes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from trainer_server.common import Home

_NICE = ("nice", "-n", "10")
"""Other tests wait for answers meanwhile."""


def environment(
    name: str,
    *packages: str,
    marker: str = "",
    overlay: bool = False,
    begin_with: Path | None = None,
    compiled: bool = False,
) -> Path:
    """Makes an environment unless it is there. Several test runs may ask at once: one makes it, the others wait.

    Args:
        name: Names its directory in the cache.
        packages: What pip installs.
        marker: Whatever else it is made from; when this or a package changes, it is made anew.
        overlay: What the packages do not bring is found where the tests' own packages are.
        begin_with: The `bin` directory of another environment, of which this one begins as a copy. Its packages must
            fit together afterwards, as `pip check` says.
        compiled: Compiles all modules, for an environment that others begin with. Without, modules are compiled when
            they are imported, which few of them are: that is half the time of an installation.

    Returns:
        Its `bin` directory.
    """
    root = Home.find().cache / "test-envs"
    root.mkdir(parents=True, exist_ok=True)
    where, below = root / name, _site_packages() if overlay else []
    recipe = json.dumps([sys.version, *packages, marker, str(begin_with), *below])
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = where / ".ready"
        if not ready.exists() or ready.read_text() != recipe:
            shutil.rmtree(where, ignore_errors=True)
            if begin_with:
                copy_environment(begin_with, where)
            else:
                subprocess.run([*_NICE, sys.executable, "-m", "venv", "--without-pip", str(where)], check=True)
            if overlay:
                (packages_dir,) = where.glob("lib/python*/site-packages")
                (packages_dir / "zz_tests.pth").write_text("\n".join(below))
            pip(where / "bin", "install", "-q", *([] if compiled else ["--no-compile"]), *packages)
            if begin_with:
                pip(where / "bin", "check")
            ready.write_text(recipe)
    return where / "bin"


def copy_environment(binaries: Path, to: Path) -> Path:
    """Copies the environment of a `bin` directory, by hard links where the disk has them: pip never writes into a file
    that is there. Returns the copy's `bin` directory; its `python` is to be used, programs keep the old path."""
    shutil.copytree(binaries.parent, to, symlinks=True, copy_function=_link, ignore=shutil.ignore_patterns(".ready"))
    return to / "bin"


def pip(binaries: Path, *words: str) -> None:
    """Runs our own pip for another environment. Raises RuntimeError with the end of what it said when it fails."""
    mine = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(binaries / "python")]
    command = [*_NICE, *mine, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"`pip {' '.join(words)}` failed:\n{(done.stdout + done.stderr)[-3000:]}")


def _site_packages() -> list[str]:
    return [path for path in sys.path if path.endswith("site-packages")]


def _link(source: str, to: str) -> None:
    try:
        os.link(source, to)
    except OSError:
        shutil.copy2(source, to)
