"""What must be installed: torch for CPUs, and the extras of this project.

`python -m trainer_server.process.cpu_torch` installs torch for CPUs. That needs the standard library and pip alone.

The public package index has builds of torch for CUDA only, of several GB with their libraries. vLLM for CPUs requires
the build for CPUs by its local version, `+cpu`, which is on PyTorch's own index alone. That index also has old releases
of other packages, so that only torch is taken from there, in a step of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from urllib.parse import urlsplit, urlunsplit

from trainer_server.process.hardware import flavour

VERSION = "2.13.0"  # the release that vLLM for CPUs requires
INDEX = "https://download.pytorch.org/whl/cpu"
PIP_COMMAND = f"pip install torch=={VERSION} --index-url {INDEX}"
"""For people who call pip themselves."""
SERVER = ("fastapi", "uvicorn", "torch", "transformers", "peft", "safetensors", "gguf")
"""Modules of the extra `server`."""
_TIME_LIMIT = ("--timeout", "10", "--retries", "1")
"""With pip's own limits, an index that does not answer takes minutes."""


def install(python: str, progress: Callable[[str], None]) -> None:
    """Installs torch for CPUs into an environment, unless that build is there.

    pip looks where its settings say, and then on PyTorch's index, or on the one that ART_TORCH_INDEX names. On systems
    other than Linux the public index has torch for CPUs, and nothing is done.

    Args:
        python: The interpreter of the environment, which has pip.
        progress: Is called with lines to show to the user.

    Raises:
        RuntimeError: pip did not find the wheel, or failed. The message says what to do.
    """
    if sys.platform != "linux" or _installed_version(python) == f"{VERSION}+cpu":
        return
    requirement = f"torch=={VERSION}+cpu"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--progress-bar", "off"]
    command = [*pip, "--no-compile", "--no-deps", requirement]
    progress(f"installing {requirement}")
    status, output = _run(command)
    if status and "No matching distribution" in output:
        index = os.environ.get("ART_TORCH_INDEX") or INDEX
        progress(f"installing {requirement} from {_without_password(index)}")
        status, output = _run([*command, *_TIME_LIMIT, "--index-url", index])
        if status:
            major, minor = sys.version_info[:2]
            raise RuntimeError(
                f"{requirement} was found neither where pip looks nor on {_without_password(index)}:\n"
                f"{_errors(output)}\nIf that address cannot be reached, name another index that has the wheel "
                f"(ART_TORCH_INDEX=https://…), or a folder with the wheel for Python {major}.{minor} "
                "(PIP_FIND_LINKS=/a/folder). Then run this again."
            )
    if status:
        raise RuntimeError(f"pip could not install {requirement}:\n{_errors(output)}")


def _installed_version(python: str) -> str:
    code = "import importlib.metadata as m; print(*[d.version for d in m.distributions(name='torch')])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def _run(command: list[str]) -> tuple[int, str]:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return result.returncode, result.stdout.decode(errors="replace")


def _errors(output: str) -> str:
    """The last lines in which pip says what is wrong, without its long list of versions."""
    lines = output.splitlines()
    errors = [re.sub(r" \(from versions: .*\)", "", line) for line in lines if line.startswith("ERROR")]
    return "\n".join(errors[-3:] or lines[-3:])


def _without_password(address: str) -> str:
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def pip_command(extra: str) -> str:
    """The shell line that installs an extra. Without a GPU and without torch, torch for CPUs comes first."""
    from trainer_server.common.installation import extra_command  # needs pydantic, which may not be installed yet

    command = extra_command(extra)
    if find_spec("torch") is None and flavour() == "cpu" and sys.platform == "linux":
        return f"{PIP_COMMAND} && {command}"
    return command


def require(*modules: str, extra: str) -> None:
    """Raises ConfigError with the command that helps when a module is not installed. Imports nothing."""
    from trainer_server.wire import ConfigError  # needs pydantic, which may not be installed yet; see above

    if missing := [module for module in modules if find_spec(module) is None]:
        raise ConfigError(f"not installed: {', '.join(missing)}. Install them: {pip_command(extra)}")


def main() -> None:
    """Installs torch for CPUs into the environment of this interpreter, where the machine has no GPU."""
    if flavour() == "cuda":
        return
    try:
        install(sys.executable, lambda line: print(f"==> {line}", flush=True))
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
