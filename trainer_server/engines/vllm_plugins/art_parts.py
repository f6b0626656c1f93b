"""What the plugins need of vLLM's internals: looked for before anything is changed.

vLLM's internals have no contract, and a plugin that raises ends vLLM's start. So each plugin lists its parts: by
feature, the names that the feature replaces or uses. A feature whose parts are not all there stays out: vLLM's log
names them, and vLLM computes as it does by itself. What is missing is also in the answer to `GET /art/plugins`
(`art_key`), and in that of `art_registry`.

A part is `module:name`, `module:Class.method(first, second)` with the parameters it is called with, or
`module:Class.self.attribute` for what its methods set. `make vllm-table` looks the same parts up in wheels.

This folder goes on vLLM's PYTHONPATH, with the entry point in the dist-info beside this file.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

log = logging.getLogger("vllm.art")

Parts = Mapping[str, Sequence[str]]
"""By feature: the parts that it needs."""
PLUGINS = tuple(
    entry.module
    for plugins in importlib.metadata.distributions(name="art-engine-plugins", path=[str(Path(__file__).parent)])
    for entry in plugins.entry_points
)
"""The modules that vLLM loads as plugins: entry_points.txt in the dist-info beside this file lists them, and nothing
else does. A plugin names the features that change vLLM on CPUs only in CPU_ONLY."""

_missing: dict[str, list[str]] = {}
"""By feature: what was looked for in this process and is not there, or the error that it failed with."""


def have(feature: str, parts: Parts) -> bool:
    """Whether all parts of a feature are there. What is missing is logged and noted."""
    if lacking := [part for part in parts[feature] if not present(part)]:
        _missing[feature] = lacking
        log.warning(
            "this vLLM has not %s: %s is left out, and vLLM goes on as it does by itself", ", ".join(lacking), feature
        )
    return not lacking


def missing() -> dict[str, list[str]]:
    """By feature: what plugins have not found in this process."""
    return {feature: list(names) for feature, names in _missing.items()}


def survey(cpu: bool) -> dict[str, list[str]]:
    """By feature of all plugins: what is missing of its parts. Changes nothing.

    Args:
        cpu: Whether vLLM computes on the CPU.
    """
    lacking = {
        feature: [part for part in parts if not present(part)]
        for plugin in map(importlib.import_module, PLUGINS)
        for feature, parts in plugin.PARTS.items()
        if cpu or feature not in plugin.CPU_ONLY
    }
    return {feature: names for feature, names in lacking.items() if names}


def harmless(register: Callable[[], None]) -> Callable[[], None]:
    """A plugin's `register` that ends no vLLM: an error in it is logged and noted, by the name of its module."""

    @functools.wraps(register)
    def register_safely() -> None:
        try:
            register()
        # Of any kind: vLLM calls this unguarded, and would not start.
        except Exception as error:
            name = register.__module__
            _missing[name] = [f"{type(error).__name__}: {error}"]
            log.exception("%s failed, and is left out", name)

    return register_safely


def present(part: str) -> bool:
    """Whether the installed vLLM has a part."""
    module, _, rest = part.partition(":")
    name, _, arguments = rest.rstrip(")").partition("(")
    try:
        definition: Any = importlib.import_module(module)
        for step in name.split(".self.")[0].split("."):
            definition = getattr(definition, step)
    except (ImportError, AttributeError):
        return False
    if ".self." in name:
        return _sets(definition, name.partition(".self.")[2])
    return not arguments or _takes(definition, [argument.strip() for argument in arguments.split(",")])


def _takes(function: Any, arguments: Sequence[str]) -> bool:
    """Whether these are the first parameters of a function, after `self` or `cls`."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False
    return names[names[:1] in (["self"], ["cls"]) :][: len(arguments)] == list(arguments)


def _sets(kind: type, attribute: str) -> bool:
    """Whether the source of a class, or of one that it is derived from, sets an attribute of `self`."""
    setting = re.compile(rf"\bself\.{attribute}\s*(?::[^=\n]+)?=(?!=)")
    for base in kind.__mro__[:-1]:
        try:
            if setting.search(inspect.getsource(base)):
                return True
        except (OSError, TypeError):
            continue
    return False
