"""Downloads models of the Hugging Face hub, and says of each failure what to do.

Tokens are those of huggingface_hub: `HF_TOKEN`, or the file `token` in `HF_HOME`. Only the download uses them: engine
and trainer read the downloaded files, and get no token (see `process.child`).
"""

from __future__ import annotations

import errno
import importlib.util
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from trainer_server.process.cpu_torch import require
from trainer_server.process.files import caused_by
from trainer_server.wire import ARTError, ConfigError, EngineError

SCHEME = "hf://"
_TEXTS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py")
"""Configuration, tokenizer, chat template and code."""
_WEIGHTS = ("*.safetensors",)
_OTHER_WEIGHTS = ("*.bin",)
"""Downloaded of a model that has no safetensors."""
_DUPLICATES = ("original/*", "consolidated*", "onnx/*")


def hub_name(model: str, revision: str | None) -> tuple[str, str | None]:
    """Divides `hf://org/name@revision` into the hub id and the revision.

    Args:
        model: A hub id, with or without `hf://`. Only with `hf://` it may have a revision.
        revision: `--revision`; None: not given.

    Returns:
        The hub id, and the revision; None: the main branch.

    Raises:
        ConfigError: Both name a revision, and not the same.
    """
    if not model.startswith(SCHEME):
        return model, revision
    name, _, in_model = model.removeprefix(SCHEME).partition("@")
    if in_model and revision not in (None, in_model):
        raise ConfigError(f"--model {model} names the revision {in_model}, and --revision {revision}: give one of them")
    return name, in_model or revision


def snapshot(
    model: str, revision: str | None, progress: Callable[[str], None] = lambda _: None, *, weights: bool = True
) -> Path:
    """The directory of a hub model; its name is the commit. Downloads what is missing.

    Without a network it is what an earlier download left, if that is complete.

    Args:
        model: The hub id.
        revision: Branch, tag or commit; None: the main branch.
        progress: Is called with lines to show to the user.
        weights: Whether the weights are needed too.

    Raises:
        ConfigError: There is no such model or revision, or this account may not have it.
        EngineError: The download failed.
    """
    require("huggingface_hub", extra="server")
    from huggingface_hub import snapshot_download

    def download(*patterns: str, local: bool = False) -> Path:
        directory = snapshot_download(
            model,
            revision=revision,
            allow_patterns=[*_TEXTS, *patterns],
            ignore_patterns=list(_DUPLICATES),
            local_files_only=local,
            endpoint=os.environ.get("HF_ENDPOINT"),  # the library has read it when it was imported
        )
        return Path(directory)

    failures: tuple[type[Exception], ...] = (OSError, ValueError, *_http_errors())
    progress(f"looking for {model} on the hub; what is missing here is downloaded")
    patterns = _WEIGHTS if weights else ()
    try:
        directory = download(*patterns)
        if weights and not any(directory.glob("*.safetensors")):
            directory = download(*_OTHER_WEIGHTS)
    except failures as error:
        failure = _failure(error, model, revision)
        if isinstance(failure, ConfigError) or caused_by(error, errno.ENOSPC, errno.EDQUOT):
            raise failure from error
        try:
            directory = download(*patterns, local=True)
        except OSError:
            raise failure from error
        progress(f"{model}: taken from this machine, since the hub cannot be reached")
    if not (directory / "config.json").exists():
        raise ConfigError(f"--model {model}: no config.json in {page(model)}; it is no model of transformers")
    if weights and not [*directory.glob("*.safetensors"), *directory.glob("*.bin")]:
        raise ConfigError(f"--model {model}: no weights as safetensors or .bin in {page(model)}")
    return directory


def page(model: str) -> str:
    """The address of a model on the hub."""
    return f"https://huggingface.co/{model}"


def _failure(error: Exception, model: str, revision: str | None) -> ARTError:
    """The error to raise for a download that failed: what was wrong, and what to do."""
    from huggingface_hub import errors, get_token

    while isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what the hub said, before the library looked at this machine
    token = get_token() is not None
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if isinstance(error, errors.GatedRepoError):
        if token:
            return ConfigError(
                f"--model {model} is gated, and the account of your token may not have it: ask for access at "
                f"{page(model)}. A fine-grained token also needs the permission to read gated repositories"
            )
        return ConfigError(
            f"--model {model} is gated: ask for access at {page(model)}, and set HF_TOKEN to a token of that account"
        )
    if isinstance(error, errors.DisabledRepoError):
        return ConfigError(f"--model {model}: the hub has disabled it; see {page(model)}")
    if isinstance(error, errors.RevisionNotFoundError):
        return ConfigError(f"--revision {revision}: {page(model)} has no such branch, tag or commit")
    if isinstance(error, errors.RepositoryNotFoundError):
        remedy = "the account of your token may not have it" if token else "set HF_TOKEN"
        return ConfigError(
            f"--model {model}: there is neither such a directory nor such a model on the hub. If it is private, "
            f"{remedy}"
        )
    if status == 401 and token:
        return ConfigError(f"--model {model}: the hub refuses your token: HF_TOKEN, or the file `token` in HF_HOME")
    if isinstance(error, errors.HFValidationError):
        return ConfigError(f"--model {model}: neither a directory nor a hub id: {error}")
    if caused_by(error, errno.ENOSPC, errno.EDQUOT):
        from huggingface_hub import constants

        return EngineError(
            f"--model {model} does not fit the disk of {constants.HF_HUB_CACHE}: make room, or set HF_HOME to a "
            "directory on another disk. Files that are complete are kept"
        )
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return EngineError(
            f"--model {model} is not on this machine as a whole, and HF_HUB_OFFLINE forbids to download it: take it "
            "away, or download the model elsewhere and name its directory"
        )
    return EngineError(
        f"--model {model} is not on this machine, and cannot be downloaded: {_cause(error)}. Start again once "
        f"{os.environ.get('HF_ENDPOINT') or 'https://huggingface.co'} can be reached (HF_ENDPOINT, HTTPS_PROXY): files "
        "that are complete are kept, and the others are downloaded"
    )


def _http_errors() -> tuple[type[Exception], ...]:
    """Errors of requests. huggingface_hub is made with httpx, and with httpx2 from its version 2 on."""
    libraries: list[Any] = [import_module(name) for name in ("httpx", "httpx2") if importlib.util.find_spec(name)]
    return tuple(library.HTTPError for library in libraries)


def _cause(error: BaseException) -> str:
    """The first line of an error, or of what caused it where that says more."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    first = next((cause for cause in causes if isinstance(cause, _http_errors())), error)
    return next(iter(str(first).strip().splitlines()), "") or type(first).__name__
