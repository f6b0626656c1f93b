"""What the installed vLLM knows: its parsers and model architectures, by name; and what the plugins miss of it."""

from __future__ import annotations

import json
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trainer_server.engines.vllm.install import PLUGINS, directory, engine_python
from trainer_server.process.child import inherited_environment
from trainer_server.process.files import write_atomic
from trainer_server.wire import EngineError

_TIMEOUT = 300.0
"""Seconds for importing vLLM, which takes about ten on a warm disk."""
WHOLE_ADAPTERS = ("check of whole adapters", "art_applied")
"""The feature of the plugin art_applied.py, and its module: without it nobody sees a half-applied version."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Names that the installed vLLM knows.

    Args:
        version: The version of vLLM.
        tool_parsers: Values of `--tool-call-parser`, with the texts that each parser needs as tokens of the vocabulary.
        reasoning_parsers: Values of `--reasoning-parser`, likewise.
        constraining: Those of the tool parsers with which it constrains all answers that may be tool calls.
        architectures: Model classes that it serves, as in the `architectures` of a configuration.
        missing: By feature of the plugins: what it lacks of what the feature needs, so that the feature is left out.
    """

    version: str
    tool_parsers: dict[str, tuple[str, ...]]
    reasoning_parsers: dict[str, tuple[str, ...]]
    constraining: tuple[str, ...]
    architectures: tuple[str, ...]
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)


_REGISTRY = TypeAdapter(Registry)


def registry(cache: Path) -> Registry:
    """Asks the installed vLLM for its names.

    Importing vLLM takes seconds, so the answer is kept in vLLM's environment, by the installed version.

    Args:
        cache: Directory of what can be made again; vLLM's environment is in it.

    Raises:
        EngineError: vLLM is not installed, or cannot be imported.
    """
    python = engine_python(cache)
    file = directory(cache) / "art-registry.json"
    key = installed_key(cache)
    if file.exists():
        answer = json.loads(file.read_text())
        if answer.pop("installed") == key:
            return _REGISTRY.validate_python(answer)
    content = _REGISTRY.validate_python(_query_vllm(python))
    write_atomic(file, json.dumps({"installed": key, **asdict(content)}))
    return content


def check_whole_adapters(url: str, missing: Mapping[str, Sequence[str]]) -> None:
    """Raises EngineError for a vLLM that applies adapters without seeing whether it applies all of them.

    Args:
        url: Its address.
        missing: By feature of the plugins: what it lacks.
    """
    if parts := [part for feature in WHOLE_ADAPTERS for part in missing.get(feature, [])]:
        raise EngineError(
            f"the vLLM at {url} cannot check whether it applies all of an adapter, and would train on half of one "
            f"unseen: it has not {', '.join(parts)}. Start a version that has (docs: scaling/engines, Versions of "
            "vLLM); `art-langgraph engine install` installs one"
        )


def installed_key(cache: Path) -> list[str]:
    """What an answer holds for: the installed distributions of vLLM with their versions, and the question."""
    distributions = sorted(path.name for path in directory(cache).glob("lib/python*/site-packages/vllm*.dist-info"))
    files = sorted([*PLUGINS.glob("*.py"), *PLUGINS.glob("*.dist-info/entry_points.txt")])
    question = b"".join(path.read_bytes() for path in files)
    return [*distributions, f"question {zlib.crc32(question):x}"]


def _query_vllm(python: Path) -> dict[str, Any]:
    variables = {
        **inherited_environment(patterns=("VLLM_*",)),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "PYTHONPATH": str(PLUGINS),
    }
    try:
        result = subprocess.run(
            [str(python), "-m", "art_registry"],
            capture_output=True,
            text=True,
            check=False,
            env=variables,
            timeout=_TIMEOUT,
        )
        lines = result.stdout.splitlines()
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        tail = result.stderr[-1000:] if not isinstance(error, OSError | subprocess.TimeoutExpired) else str(error)
        raise EngineError(
            f"vLLM in {python.parents[1]} does not say which parsers and models it knows. Install it again: "
            f"art-langgraph engine install. Its error:\n{tail}"
        ) from None
