"""`serve`: what is missing is said before anything is downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_server.server.config import ServerConfig
from trainer_server.server.serve import serve
from trainer_server.wire import EngineError, Home


def test_a_missing_engine_is_said_before_the_model_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    with pytest.raises(EngineError, match="art-langgraph engine install"):
        serve(ServerConfig(Home(tmp_path / "home"), model="embedded", port=0))
    assert not (tmp_path / "cache").exists()
