"""What runs in vLLM is in no package: its modules are loaded from their files."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from trainer_server.engines.vllm.install import PLUGINS


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
