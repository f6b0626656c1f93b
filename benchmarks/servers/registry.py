"""The servers of `benchmarks.specialize`: each module of this folder with a `SERVER` has one. No package knows them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import benchmarks.servers
from benchmarks.servers.server import BenchmarkServer, MakeWorld

__all__ = ["SERVERS", "BenchmarkServer", "MakeWorld"]

_NAMES = sorted(module.name for module in iter_modules(benchmarks.servers.__path__) if module.name != "registry")
_MODULES = [import_module(f"benchmarks.servers.{name}") for name in _NAMES]

SERVERS: dict[str, BenchmarkServer] = {
    module.SERVER.name: module.SERVER for module in _MODULES if hasattr(module, "SERVER")
}
"""By the name that `--server` takes."""
