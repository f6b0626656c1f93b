"""Base models: resolves `--model embedded | testbed:NAME | PATH | HF-ID`, and identifies what they hold."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer_server.engines.hub import SCHEME, hub_name, snapshot
from trainer_server.engines.package_models import PACKAGE_MODELS, package_model
from trainer_server.wire import ConfigError

_SAMPLES = 64
"""Number of places in a weights file that the fingerprint covers."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A base model that can be served and trained.

    Args:
        name: Its name on the gateway.
        path: Its directory.
        revision: The commit of a hub model; None for other models.
        trust_remote_code: Whether Python code in its directory may run (`--trust-remote-code`).
    """

    name: str
    path: str
    revision: str | None = None
    trust_remote_code: bool = False

    @property
    def hub_id(self) -> str:
        """The model's hub id, for model cards; its name if it has none."""
        return next((model.hub_id for model in PACKAGE_MODELS.values() if model.name == self.name), self.name)

    def process_environment(self, gpus: str | None = None) -> dict[str, str]:
        """Environment variables of a process that loads the model with transformers.

        They switch telemetry off, and requests to the hub: the model is on this machine.

        Args:
            gpus: Value of CUDA_VISIBLE_DEVICES; None: not set, so that all GPUs are used.
        """
        return {
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1"),
            **({"CUDA_VISIBLE_DEVICES": gpus} if gpus is not None else {}),
        }

    def code_hint(self, words: str) -> str:
        """What to add to the last words of a process that could not load the model because its code may not run.

        Args:
            words: The end of the process's log.
        """
        if self.trust_remote_code or not re.search("trust_remote_code=True|--trust-remote-code", words):
            return ""
        return (
            f". The model needs the Python code in {self.path}: read it, and if you trust it, serve with "
            "--trust-remote-code"
        )

    def tokenizer_fingerprint(self) -> str:
        """sha256, hex, of the files that decide how text becomes tokens."""
        digest = hashlib.sha256()
        names = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja")
        for path in (Path(self.path) / name for name in names):
            if path.exists():
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """sha256, hex, of the configuration and of samples of the weights.

        It tells models apart that have the same name and other weights, such as two commits of a hub model.
        """
        digest = hashlib.sha256((Path(self.path) / "config.json").read_bytes())
        for path in sorted(Path(self.path).glob("*.safetensors")):
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                for start in range(0, size, max(1, size // _SAMPLES)):
                    file.seek(start)
                    digest.update(file.read(4096))
        return digest.hexdigest()


def resolve(
    model: str,
    cache: Path,
    progress: Callable[[str], None] = lambda _: None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    weights: bool = True,
) -> ServedModel:
    """Resolves the value of `--model`. A model that is not on this machine is downloaded.

    A hub model is resolved to one commit. So engine, trainer and exports have the same files, even if the model changes
    on the hub meanwhile.

    Args:
        model: `embedded`, a model of `PACKAGE_MODELS` for tests and benchmarks (`testbed:NAME`), a model directory, a
            hub id, or `hf://org/name@revision`.
        cache: Where converted models of packages are kept. Hub models are in the cache of huggingface_hub.
        progress: Is called with lines to show to the user.
        revision: Branch, tag or commit of a hub model; None: its main branch.
        trust_remote_code: Whether Python code in its directory may run.
        weights: Whether the weights of a hub model are downloaded, too.

    Raises:
        ConfigError: There is no such directory, model or revision, or it may not be used.
        EngineError: The model could not be downloaded or converted.
    """
    if package := package_model(model):
        _check_revision(model, revision)
        return ServedModel(package.name, str(package.ensure(cache, progress)))
    if directory := local_directory(model):
        _check_revision(model, revision)
        return ServedModel(directory.name, str(directory), trust_remote_code=trust_remote_code)
    name, revision = hub_name(model, revision)
    commit = snapshot(name, revision, progress, weights=weights)
    return ServedModel(name, str(commit), revision=commit.name, trust_remote_code=trust_remote_code)


def present_directory(model: str, cache: Path) -> Path | None:
    """Where the files of a model are on this machine; None: it is a model of the hub, or not made of its packages yet.

    Args:
        model: As `resolve` takes it, or a config.json.
        cache: As `resolve` takes it.

    Raises:
        ConfigError: As `local_directory`.
    """
    if package := package_model(model):
        directory = package.directory(cache)
        return directory if directory.is_dir() else None
    return local_directory(model)


def _check_revision(model: str, revision: str | None) -> None:
    """Raises ConfigError for a revision of a model that is on this machine."""
    if revision:
        raise ConfigError(f"--revision {revision} is for models of the hub, and --model {model} is on this machine")


def local_directory(model: str) -> Path | None:
    """The directory that a value of `--model` names, itself or by its config.json; None: it names a model of the hub.

    Raises:
        ConfigError: There is no such directory, or it holds no model.
    """
    if model.startswith(SCHEME):
        return None
    if (path := Path(model).expanduser()).exists():
        path = path.parent if path.name == "config.json" else path
        if not (path / "config.json").exists():
            raise ConfigError(f"--model {model}: no config.json in it; a Hugging Face model directory is needed")
        return path.resolve()
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigError(f"--model {model}: there is no such directory")
    return None
