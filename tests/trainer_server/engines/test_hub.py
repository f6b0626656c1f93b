"""Downloads from a hub over a socket, by the real huggingface_hub: tokens, revisions, and each way to fail."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.hub import COMMITS, GRANTED, STALE, Hub, serving_hub
from trainer_server.engines.hub import hub_name, snapshot
from trainer_server.process.child import inherited_environment
from trainer_server.wire import ConfigError, EngineError

pytestmark = pytest.mark.slow

REVOKED = "the hub refuses your token: HF_TOKEN, or the file `token` in HF_HOME"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving_hub(tmp_path, monkeypatch) as running:
        yield running


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub tries again without waiting."""
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _seconds: None)


@pytest.mark.parametrize(
    ("model", "revision", "token", "words"),
    [
        ("lab/gated", None, None, "is gated: ask for access at https://huggingface.co/lab/gated, and set HF_TOKEN"),
        ("lab/gated", None, "hf_other", "is gated, and the account of your token may not have it: ask for access at"),
        (
            "lab/none",
            None,
            None,
            "neither such a directory nor such a model on the hub. If it is private, set HF_TOKEN",
        ),
        ("lab/private", None, "hf_other", "it is private, the account of your token may not have it"),
        ("lab/open", None, STALE, REVOKED),
        ("lab/gated", None, STALE, REVOKED),
        ("lab/open", "v9", None, "--revision v9: https://huggingface.co/lab/open has no such branch, tag or commit"),
        ("lab/disabled", None, None, "the hub has disabled it; see https://huggingface.co/lab/disabled"),
        ("lab/-open-", None, None, "neither a directory nor a hub id"),
    ],
)
def test_a_model_that_cannot_be_had_is_named_with_the_remedy(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, model: str, revision: str | None, token: str | None, words: str
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ConfigError) as refused:
        snapshot(model, revision)
    assert words in str(refused.value)


@pytest.mark.parametrize("place", ["environment", "file"])
@pytest.mark.parametrize("model", ["lab/gated", "lab/private"])
def test_a_token_opens_gated_and_private_models_and_no_child_gets_it(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, place: str
) -> None:
    if place == "environment":
        monkeypatch.setenv("HF_TOKEN", GRANTED)
    else:
        (tmp_path / "token").write_text(GRANTED)
    assert snapshot(model, None).name == COMMITS["main"]
    assert hub.tokens == {GRANTED}
    assert GRANTED not in inherited_environment().values()


def test_without_weights_only_texts_are_downloaded(hub: Hub) -> None:
    where = snapshot("lab/open", None, weights=False)
    assert {path.name for path in where.iterdir()} == {"config.json"}
    assert snapshot("lab/open", None) == where
    assert hub.asked.count("model.safetensors") > 0


def test_a_download_that_breaks_off_goes_on_where_it_was(
    hub: Hub, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1)
    hub.broken = 1
    where = snapshot("lab/open", None)
    assert (where / "model.safetensors").read_text() == f"weights of {COMMITS['main']}"
    assert hub.ranges == ["bytes=5-"]


def test_a_download_that_fails_keeps_the_files_that_are_complete(hub: Hub, at_once: None) -> None:
    hub.broken = 99
    with pytest.raises(EngineError) as failed:
        snapshot("lab/open", None)
    assert "cannot be downloaded" in str(failed.value)
    assert f"Start again once {hub.url} can be reached" in str(failed.value)
    hub.broken = 0
    hub.asked.clear()
    assert snapshot("lab/open", None).name == COMMITS["main"]
    assert set(hub.asked) == {"model.safetensors"}


def test_without_the_hub_a_model_comes_from_this_machine_or_that_is_said(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = snapshot("lab/open", None)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    lines: list[str] = []
    assert snapshot("lab/open", None, lines.append) == there
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(EngineError, match="lab/gated is not on this machine, and cannot be downloaded"):
        snapshot("lab/gated", None)


def test_a_model_of_which_only_texts_are_here_is_not_served_without_the_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot("lab/open", None, weights=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(EngineError, match="lab/open is not on this machine"):
        snapshot("lab/open", None)
    assert snapshot("lab/open", None, weights=False).name == COMMITS["main"]


def test_offline_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EngineError, match="HF_HUB_OFFLINE forbids to download it"):
        snapshot("lab/open", None)


def test_a_full_disk_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: Any, **_options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(EngineError, match=r"does not fit the disk of .*hub: make room, or set HF_HOME"):
        snapshot("lab/open", None)


@pytest.mark.parametrize(("left_out", "words"), [("config.json", "no config.json in"), ("weights", "no weights as")])
def test_a_model_without_what_is_needed_is_refused(hub: Hub, left_out: str, words: str) -> None:
    kept = ("config.json",) if left_out == "weights" else ("model.safetensors",)
    hub.files = {name: hub.files[name] for name in kept}
    with pytest.raises(ConfigError, match=words):
        snapshot("lab/open", None)


def test_hf_home_holds_the_models_and_the_token(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "hf"
    home.mkdir()
    (home / "token").write_text(GRANTED)
    code = "from trainer_server.engines.hub import snapshot; print(snapshot('lab/gated', 'v1'))"
    env = {**{name: value for name, value in os.environ.items() if not name.startswith("HF_")}, "HF_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**env, "HF_ENDPOINT": hub.url},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(home / "hub" / "models--lab--gated" / "snapshots" / COMMITS["v1"])


def test_names_of_hub_models() -> None:
    assert hub_name("lab/open", None) == ("lab/open", None)
    assert hub_name("hf://lab/open@v1", None) == ("lab/open", "v1")
    assert hub_name("hf://lab/open", "v1") == ("lab/open", "v1")
