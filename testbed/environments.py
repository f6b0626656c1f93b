"""Virtual environments of their own for tests: made once, kept under the cache, made anew when their recipe changes."""

from __future__ import annotations

import fcntl
import json
import shutil
import site
import subprocess
import sys
from pathlib import Path

from trainer_server.wire import Home


def environment(name: str, *packages: str, marker: str = "", overlay: bool = False) -> Path:
    """The `bin` directory of an environment that has `packages`. marker: whatever else it was made from. overlay: what
    the packages do not bring is found where the tests' own are.

    Several test runs may ask at once: one makes it, the others wait.
    """
    root = Home.find().cache / "test-envs"
    root.mkdir(parents=True, exist_ok=True)
    where, recipe = root / name, json.dumps([sys.version, *packages, marker])
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = where / ".ready"
        if not ready.exists() or ready.read_text() != recipe:
            shutil.rmtree(where, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(where)], check=True, timeout=120)
            if overlay:
                (packages_dir,) = where.glob("lib/python*/site-packages")
                (packages_dir / "zz_tests.pth").write_text("\n".join(site.getsitepackages()))
            pip = [str(where / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            done = subprocess.run([*pip, *packages], capture_output=True, text=True, timeout=900)
            assert done.returncode == 0, done.stderr[-3000:]
            ready.write_text(recipe)
    return where / "bin"
