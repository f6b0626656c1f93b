"""The lines of a project that make a chat model: what has to ask the policy while it is trained."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_MODELS = ("init_chat_model", "ChatOpenAI", "ChatAnthropic", "ChatGoogleGenerativeAI", "ChatOllama", "AzureChatOpenAI")
_AGENTS = ("create_agent", "create_react_agent", "create_deep_agent")
"""They take a model by its name."""
_LONGEST = 100
"""Characters of a call that are shown."""


def model_calls(file: Path) -> list[tuple[int, str]]:
    """The calls in a Python file that make a chat model, with their lines. None where the file cannot be parsed.

    Args:
        file: The file.
    """
    return sorted((call.lineno, ast.unparse(call)[:_LONGEST]) for call in _calls(file) if _makes_model(call))


def policies_asked(file: Path) -> set[str]:
    """The policies that a Python file names in calls such as `ChatART(policy="agent")`. None where it cannot be parsed.

    Args:
        file: The file.
    """
    values = [word.value for call in _calls(file) for word in call.keywords if word.arg == "policy"]
    texts = [value.value for value in values if isinstance(value, ast.Constant)]
    return {text.partition("@")[0] for text in texts if isinstance(text, str)}


def _calls(file: Path) -> Iterator[ast.Call]:
    """The calls in a Python file. None where it cannot be parsed."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _makes_model(call: ast.Call) -> bool:
    """Whether a call makes a chat model, or an agent with a model that it names."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    first = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "model")]
    by_name = any(isinstance(argument, ast.Constant) and isinstance(argument.value, str) for argument in first)
    return name in _MODELS or (name in _AGENTS and by_name)
