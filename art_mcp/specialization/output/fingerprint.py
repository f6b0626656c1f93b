"""The settings of a run as JSON values: a run that is resumed must have the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel

from art_langgraph.llm.llm import LLM


def fingerprint(**settings: Any) -> dict[str, Any]:
    """The settings by name, those of a class as `name.field`.

    Args:
        **settings: Values, dataclasses of values, models, functions. Of a function there is its name, of a language
            model the name of the model.
    """
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        if is_dataclass(value) and not isinstance(value, type | LLM):
            plain |= {f"{name}.{field.name}": _plain(getattr(value, field.name)) for field in fields(value)}
        else:
            plain[name] = _plain(value)
    return json.loads(json.dumps(plain))  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """A value as JSON."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, LLM | BaseChatModel):  # not the settings of a chat model, which may have keys
        return LLM.of(value).model
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return _name(value)


def _name(value: Any) -> str:
    """The name of a function, or of the class of an object."""
    named: Callable[..., Any] | type = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
