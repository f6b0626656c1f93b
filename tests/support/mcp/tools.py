"""Tools as catalogs have them, for tests of the grammar."""

from __future__ import annotations

from typing import Any

from art_mcp.scenarios.catalog import CatalogTool

STRING = {"type": "string"}
INTEGER = {"type": "integer"}


def tool(name: str, _required: int | None = None, /, **properties: Any) -> CatalogTool:
    """A tool.

    Args:
        name: Its name.
        _required: How many of the parameters are required; None: all.
        **properties: The schemas of its parameters.
    """
    required = list(properties)[:_required]
    return CatalogTool(name=name, input_schema={"type": "object", "properties": dict(properties), "required": required})
