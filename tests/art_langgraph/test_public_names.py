"""The package's public names: what it promises resolves, and nothing else is public."""

from __future__ import annotations

from types import ModuleType

import art_langgraph


def test_all_names_resolve_and_nothing_else_is_public() -> None:
    names = set(art_langgraph.__all__)
    assert len(names) == len(art_langgraph.__all__)
    assert all(getattr(art_langgraph, name) is not None for name in names)
    found = {
        name
        for name, value in vars(art_langgraph).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name not in ("Any", "TYPE_CHECKING")
    }
    assert found | {"ARTMiddleware"} == names  # imported on demand: it needs the package langchain
