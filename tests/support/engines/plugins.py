"""What runs in vLLM is in no package: its modules are loaded from their files. And a vLLM of names alone for them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from trainer_server.engines.vllm.install import PLUGINS

_CALLED = ("register_lazy_module",)
"""What plugins call when they start."""


def engine_plugin(name: str) -> ModuleType:
    if str(PLUGINS) not in sys.path:
        sys.path.append(str(PLUGINS))  # where they find one another, as in vLLM
    spec = importlib.util.spec_from_file_location(name, PLUGINS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def write_vllm(where: Path, parts: Iterable[str]) -> None:
    """Writes a package `vllm` that has these parts (see `art_parts`) and nothing else: functions that raise."""
    modules: dict[str, dict[str, dict[str, str]]] = {"vllm.platforms": {}}
    for part in parts:
        module, _, rest = part.partition(":")
        name, _, arguments = rest.rstrip(")").partition("(")
        owner, _, member = name.replace(".self.", ".self ").partition(".")
        members = modules.setdefault(module, {}).setdefault(owner, {})
        if member:
            members[member] = arguments
        elif owner[0].islower() or owner[0] == "_":
            members[""] = arguments
    for module, owners in modules.items():
        path = where.joinpath(*module.split(".")).with_suffix("")
        path.mkdir(parents=True, exist_ok=True)
        (path / "__init__.py").write_text("\n".join(_source(owner, members) for owner, members in owners.items()))
    for package in where.rglob("*"):
        if package.is_dir() and package.name != "__pycache__":
            (package / "__init__.py").touch()
    (where / "vllm" / "platforms" / "__init__.py").write_text(
        "class current_platform:\n    @staticmethod\n    def is_cpu(): return True\n"
    )


def _source(owner: str, members: dict[str, str]) -> str:
    if "" in members:
        return f"def {owner}({members['']}): raise NotImplementedError\n"
    lines = [f"class {owner}:", "    def __init__(self):", "        pass"]
    lines += [f"        self.{name.removeprefix('self ')} = None" for name in members if name.startswith("self ")]
    for name, arguments in members.items():
        if not name.startswith("self "):
            first = "cls" if name in ("from_lora_tensors", "from_local_checkpoint", *_CALLED) else "self"
            lines += ["    @classmethod"] if first == "cls" else []
            body = "pass" if name in _CALLED else "raise NotImplementedError"
            lines += [f"    def {name}({', '.join(filter(None, [first, arguments]))}): {body}"]
    return "\n".join(lines) + "\n"
