"""What to type for an extra, by where this package is from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer_server.common.installation import extra_command


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (None, "pip install 'art-langgraph[server]'"),
        ({"url": "file:///a%20clone", "dir_info": {"editable": True}}, "pip install -e '/a clone[server]'"),
        ({"url": "file:///clone", "dir_info": {}}, "pip install 'art-langgraph[server] @ file:///clone'"),
        (
            {"url": "https://git.example.com/art", "vcs_info": {"vcs": "git", "commit_id": "4f2a"}},
            "pip install 'art-langgraph[server] @ git+https://git.example.com/art@4f2a'",
        ),
    ],
)
def test_an_extra_comes_from_where_the_package_is_from(
    source: dict[str, Any] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "art_langgraph-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: art-langgraph\nVersion: 9\n")
    if source is not None:
        (folder / "direct_url.json").write_text(json.dumps(source))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert extra_command("server") == command
