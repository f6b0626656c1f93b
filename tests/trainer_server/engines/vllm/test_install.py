"""vLLM's environment."""

from __future__ import annotations

import fcntl
import json
import threading
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from trainer_server.engines.vllm import install as engine_install
from trainer_server.engines.vllm.install import CPU_REQUIREMENT, Installation, directory, engine_python, install
from trainer_server.wire import ConfigError, EngineError


def test_of_two_processes_that_install_at_once_the_second_waits_for_the_first(tmp_path: Path) -> None:
    waiting, made = threading.Event(), list[Installation]()
    with (tmp_path / "engine.lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = threading.Thread(
            target=lambda: made.append(install(tmp_path, lambda line: waiting.set(), kind="cpu")), daemon=True
        )
        second.start()
        assert waiting.wait(PATIENCE)
        directory(tmp_path).mkdir()
        facts = {"flavour": "cpu", "requirement": CPU_REQUIREMENT}
        (directory(tmp_path) / "art-engine.json").write_text(json.dumps(facts))
    second.join(PATIENCE)
    assert made == [Installation(directory(tmp_path), "cpu", CPU_REQUIREMENT)]


def test_a_library_that_the_system_lacks_is_named_before_anything_is_installed_or_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_install, "_NUMA", "libnuma.so.99")
    with pytest.raises(EngineError, match=r"libnuma\.so\.99.*apt install libnuma1"):
        install(tmp_path / "cache", kind="cpu")
    assert not (tmp_path / "cache").exists()
    directory(tmp_path).mkdir()
    facts = {"flavour": "cpu", "requirement": CPU_REQUIREMENT}
    (directory(tmp_path) / "art-engine.json").write_text(json.dumps(facts))
    with pytest.raises(EngineError, match="apt install libnuma1"):
        engine_python(tmp_path)


@pytest.mark.parametrize("name", ["my cache", "a:b"])
def test_a_cache_whose_path_the_system_would_cut_is_refused(tmp_path: Path, name: str) -> None:
    """torch's libgomp would not be preloaded, and vLLM would compute on one core."""
    with pytest.raises(EngineError, match=r"cuts their paths at spaces and colons\. Name a cache without them"):
        install(tmp_path / name, kind="cpu")
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/cache cannot be written: .*with ART_CACHE"):
        install(tmp_path / "file" / "cache", kind="cpu")
