"""What is known of a reward function, to notice a change of it: the same in all processes of one Python version."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def reward_facts(reward: Any) -> Any:
    """The name of a reward function, and what it computes as far as that can be read off it, as JSON.

    That is its bytecode and its defaults, the functions of its module that it calls, the numbers and texts of its
    module that it reads, and what it encloses: so the parts and weights of `weighted`, and the function and arguments
    of a `functools.partial`. Of an object that is called, it is the code of `__call__` and, of a frozen dataclass, the
    fields; the state of other objects may change while they are used. What other modules do is not known.

    Args:
        reward: The function.
    """
    try:
        return _Reader().facts(reward)
    except RecursionError:  # something that contains itself
        return _name(reward)


class _Reader:
    """Reads facts off values, each function once."""

    def __init__(self) -> None:
        self._read: dict[int, int] = {}
        """Number of each function that was read, by its `id`."""

    def facts(self, value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, Mapping):
            return [[self.facts(key), self.facts(item)] for key, item in value.items()]
        if isinstance(value, (set, frozenset)):
            return sorted(repr(self.facts(item)) for item in value)
        if isinstance(value, (list, tuple)):
            return [self.facts(item) for item in value]
        if isinstance(value, functools.partial):
            return ["partial", *map(self.facts, (value.func, value.args, value.keywords))]
        if isinstance(value, MethodType):
            return [self.facts(value.__self__), self.facts(value.__func__)]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, CodeType):
            code = (value.co_code, value.co_exceptiontable, value.co_names, value.co_consts)
            return [self.facts(part) for part in code]
        if isinstance(value, type) or not callable(value):
            return _name(value if isinstance(value, type) else type(value))
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:  # by `functools.cache`, say
            return [_name(type(value)), self.facts(wrapped)]
        if isinstance(call := type(value).__call__, FunctionType):
            return [_name(type(value)), self.facts(call), self.facts(_fields(value))]
        return _name(value)

    def _function(self, function: FunctionType) -> Any:
        if (number := self._read.get(id(function))) is not None:
            return number
        self._read[id(function)] = len(self._read)
        cells = [_content(cell) for cell in function.__closure__ or ()]
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__, cells, _globals(function))
        return [_name(function), *map(self.facts, parts)]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty as yet
        return None


def _globals(function: FunctionType) -> dict[str, Any]:
    """What a function reads in its module: functions of the module, numbers and texts."""
    space = function.__globals__
    there = {name: space[name] for name in sorted(_names(function.__code__)) if name in space}
    return {
        name: value
        for name, value in there.items()
        if isinstance(value, _PLAIN) or (isinstance(value, FunctionType) and value.__module__ == function.__module__)
    }


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of a frozen dataclass; None of anything else."""
    parameters = getattr(value, "__dataclass_params__", None)
    if not is_dataclass(value) or not getattr(parameters, "frozen", False):
        return None
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}"
