"""Stock answers: what a tool says whenever it does not find what it is asked for, in whichever language."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.scenarios.observe import leaves

OWN_ANSWERS = 2
"""Calls that gave something of their own, at least, if what others gave is a stock answer."""

LENGTH = 2
"""How many times as long as a stock answer those are, at least."""


class StockAnswers:
    """What tools gave, without the values of their calls.

    An answer to several different calls that differs in their values alone says nothing of what they name, if other
    calls of the tool got longer answers that no second call got.
    """

    def __init__(self) -> None:
        self._calls: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))

    def learn(self, tool: str, arguments: Mapping[str, Any], result: Any) -> None:
        """Keeps what a call gave, as `parse_result` returns it."""
        self._calls[tool][_form(arguments, result)].add(canonical(arguments))

    def has(self, tool: str, arguments: Mapping[str, Any], result: Any) -> bool:
        """Whether what a call gave is a stock answer."""
        form, forms = _form(arguments, result), self._calls[tool]
        if len(forms.get(form, set()) | {canonical(arguments)}) < 2:
            return False
        own = [other for other, calls in forms.items() if len(calls) == 1 and other != form]
        return len(own) >= OWN_ANSWERS and all(len(other) >= LENGTH * len(form) for other in own)


def _form(arguments: Mapping[str, Any], result: Any) -> str:
    """A result without the values of the call."""
    text = result if isinstance(result, str) else canonical(result)
    values = {str(leaf) for _, leaf in leaves(dict(arguments)) if not isinstance(leaf, bool)}
    for value in sorted(values, key=lambda value: (-len(value), value)):
        text = text.replace(value, "\0")
    return text
