"""Environments of their own, for what cannot live beside the tests: made once, kept in the cache."""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

from trainer_server.wire import Home


def environment(name: str, *requirements: str, overlay: bool = False) -> Path:
    """The directory of a virtual environment that holds `requirements`; made if it is missing or holds others.

    overlay: what the requirements do not bring is found where the tests' own packages are.
    """
    where = Home.find().cache / "test-envs" / name
    done = where / ".installed"
    wanted = "\n".join(requirements)
    if not done.exists() or done.read_text() != wanted:
        shutil.rmtree(where, ignore_errors=True)
        venv.create(where, with_pip=True)
        if overlay:
            (packages,) = where.glob("lib/python*/site-packages")
            (packages / "zz_tests.pth").write_text("\n".join(site.getsitepackages()))
        command = [where / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements]
        subprocess.run(command, check=True, timeout=600, stdout=sys.stderr)
        done.write_text(wanted)
    return where
