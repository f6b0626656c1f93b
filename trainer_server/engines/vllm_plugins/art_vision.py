"""Models are loaded where torchvision is not installed, as in vLLM's environment for CPUs.

The files of models that can see (Qwen3.5 with its text alone, too) import image code of transformers, which imports
torchvision whether an image is ever computed or not. While such a file is imported, torchvision is a module of names
that raise when they are used. It is gone afterwards, so that nothing takes it for the installed package.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from art_parts import harmless, have

FEATURE = "models without torchvision"
PARTS = {FEATURE: ("vllm.model_executor.models.registry:_LazyRegisteredModel.load_model_cls",)}
CPU_ONLY = (FEATURE,)
_MODULES = (
    *("torchvision", "torchvision.io", "torchvision.ops", "torchvision.transforms"),
    *("torchvision.transforms.functional", "torchvision.transforms.v2", "torchvision.transforms.v2.functional"),
)


class _Absent:
    """What a name of torchvision stands for; annotations may join it to other types."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ModuleNotFoundError(f"{self._name} needs torchvision, which is not installed here", name="torchvision")

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self._name}.{name}")

    def __or__(self, other: Any) -> _Absent:
        return self

    __ror__ = __or__


class _AbsentModule(ModuleType):
    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self.__name__}.{name}")


@contextmanager
def absent_torchvision() -> Iterator[None]:
    """Until the block is left, torchvision can be imported, and not be used."""
    modules = {name: _AbsentModule(name) for name in _MODULES}
    for name, module in modules.items():
        module.__path__ = []
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(modules[parent], last, module)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


@harmless
def register() -> None:
    """Puts this into vLLM. Called by vLLM in every process."""
    if importlib.util.find_spec("torchvision") is not None or not have(FEATURE, PARTS):
        return
    from transformers.utils import is_torchvision_available
    from vllm.model_executor.models import registry

    is_torchvision_available()  # False, which it remembers
    load = registry._LazyRegisteredModel.load_model_cls

    @functools.wraps(load)
    def load_model_cls(self: Any) -> type:
        with absent_torchvision():
            return load(self)  # type: ignore[no-any-return]

    registry._LazyRegisteredModel.load_model_cls = load_model_cls
