"""Base models: what `--model` and `--revision` name, and what is said when they name nothing."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.hub import COMMITS, serving_hub
from trainer_server.engines import package_models
from trainer_server.engines.served_model import ServedModel, resolve
from trainer_server.policies.model_card import model_card
from trainer_server.training.export import embedded
from trainer_server.wire import ConfigError, Policy, PolicySpec, Version


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files that were asked for, of the hub that is found."""
    with serving_hub(tmp_path, monkeypatch) as hub:
        yield hub.asked


def test_a_hub_model_is_one_commit_and_is_downloaded_once(asked: list[str], tmp_path: Path) -> None:
    newest = resolve("lab/open", tmp_path)
    assert (newest.name, newest.revision) == ("lab/open", COMMITS["main"])
    assert {path.name for path in Path(newest.path).iterdir()} == {"config.json", "model.safetensors"}
    assert set(asked) == {"config.json", "model.safetensors"}
    fixed = resolve("lab/open", tmp_path, revision="v1")
    assert fixed.revision == COMMITS["v1"]
    assert fixed.fingerprint() != newest.fingerprint(), "a policy of the one is refused on the other"
    asked.clear()
    assert resolve("lab/open", tmp_path, revision=COMMITS["v1"]) == fixed
    assert asked == []


def test_a_hub_model_may_be_named_by_its_address(asked: list[str], tmp_path: Path) -> None:
    there = resolve("hf://lab/open@v1", tmp_path)
    assert (there.name, there.revision) == ("lab/open", COMMITS["v1"])
    assert resolve("lab/open", tmp_path, revision="v1") == there
    assert resolve("hf://lab/open@v1", tmp_path, revision="v1") == there
    with pytest.raises(ConfigError, match="names the revision v1, and --revision main: give one of them"):
        resolve("hf://lab/open@v1", tmp_path, revision="main")
    assert resolve("hf://lab/open", tmp_path, trust_remote_code=True).trust_remote_code


@pytest.mark.parametrize("model", ["embedded", "{}"])
def test_a_revision_is_for_models_of_the_hub(base_model: Path, tmp_path: Path, model: str) -> None:
    with pytest.raises(ConfigError, match="--revision v1 is for models of the hub"):
        resolve(model.format(base_model), tmp_path, revision="v1")


def test_a_cache_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/cache/models cannot be written: .*with ART_CACHE"):
        resolve("embedded", tmp_path / "file" / "cache")


@pytest.mark.parametrize("revision", [None, "b" * 40])
def test_a_model_card_says_the_commit(revision: str | None) -> None:
    policy = Policy(name="p", spec=PolicySpec(name="p"), base_model="lab/open", created=0.0, latest=0)
    version = Version(policy="p", version=0, created=0.0, base_revision=revision)
    card = model_card(policy, version, [version], "lab/open", "peft")
    shown = (
        f"lab/open, commit {revision} |",
        f'("lab/open", revision="{revision}")',
        f"--revision {revision} --enable",
    )
    assert [words in card for words in shown] == [revision is not None] * 3


def test_the_embedded_model_is_made_again_when_its_recipe_makes_other_files() -> None:
    """It is kept by its package's version and `_RECIPE`. If this fails, what `embedded.py` does has changed: if it
    makes other files, raise `_RECIPE`; then note the digest here."""
    code = ast.unparse(ast.parse(Path(str(embedded.__file__)).read_text()))  # comments and line breaks change nothing
    assert (package_models._RECIPE, hashlib.sha256(code.encode()).hexdigest()[:12]) == (1, "654b42246704")


def test_code_of_the_model_that_may_not_run_is_named_with_the_flag(tmp_path: Path) -> None:
    words = "ValueError: … Please pass the argument `trust_remote_code=True` to allow custom code to be run."
    base = ServedModel("base", str(tmp_path))
    assert f"needs the Python code in {tmp_path}: read it" in base.code_hint(words)
    assert base.code_hint("CUDA out of memory") == ""
    assert base.code_hint("engine args: model='base', trust_remote_code=False, dtype=auto") == ""
    assert ServedModel("base", str(tmp_path), trust_remote_code=True).code_hint(words) == ""


def test_telemetry_and_the_hub_are_off_in_processes_that_load_the_model(tmp_path: Path) -> None:
    variables = ServedModel("base", str(tmp_path)).process_environment("0")
    assert variables.items() >= {"HF_HUB_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": "0"}.items()
