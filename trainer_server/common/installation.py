"""How this package was installed, and the shell line that adds an extra to it."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

NAME = "art-langgraph"


def extra_command(extra: str) -> str:
    """The shell line that installs an extra where this package is from: a clone, a file, a Git repository, or a package
    index.

    Args:
        extra: One extra, or several with commas.
    """
    try:
        source = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")  # PEP 610
    except (PackageNotFoundError, ValueError):
        source = {}
    url = source.get("url")
    if url is None:
        return f"pip install '{NAME}[{extra}]'"
    if source.get("dir_info", {}).get("editable"):
        return f"pip install -e '{unquote(urlsplit(url).path)}[{extra}]'"
    if vcs := source.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f"pip install '{NAME}[{extra}] @ {url}'"
