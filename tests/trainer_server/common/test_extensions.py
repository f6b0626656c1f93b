"""The core works without its extensions, each of them can be missing, and the table names them all."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.support.extensions.copies import ROOT, copy_packages, delete, run_in
from trainer_server.common.extensions import EXTENSIONS, Extension, extension_of, find, load
from trainer_server.wire import ConfigError

MODULES = [extension.module for extension in EXTENSIONS]


def test_the_table_and_the_contract_of_imports_name_the_same_modules() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (contract for contract in contracts if contract["type"] == "protected")
    assert sorted(contract["protected_modules"]) == sorted(MODULES)
    assert all(extension.present for extension in EXTENSIONS)


def test_a_module_belongs_to_the_extension_around_it() -> None:
    for module in ("trainer_server.doctor", "trainer_server.doctor.command"):
        assert extension_of(module) == next(row for row in EXTENSIONS if row.module == "trainer_server.doctor")
    for module in ("trainer_server.doctors", "trainer_server.cli", "art_langgraph.cli.autopilots"):
        assert extension_of(module) is None
    assert load("trainer_server.doctor.finding").State.ok == "ok"


def test_whoever_asks_for_an_absent_extension_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        Extension("trainer_server.nothing", "the nothing"),
        Extension("trainer_server.doctor", "the check", needs=("nowhere.at_all",)),
    )
    monkeypatch.setattr("trainer_server.common.extensions.EXTENSIONS", rows)
    with pytest.raises(ConfigError, match=r"the nothing is not installed here: there is no trainer_server\.nothing"):
        load("trainer_server.nothing.below")
    with pytest.raises(ConfigError, match=r"there is no nowhere\.at_all\. Install all .* pip install"):
        load("trainer_server.doctor.finding")
    assert find("trainer_server.nothing") is None
    assert find("trainer_server.wire") is not None, "the core is there"


@pytest.mark.slow
def test_without_any_extension_the_core_captures_scores_trains_and_serves(tmp_path: Path, base_model: Path) -> None:
    copy_packages(tmp_path / "copy")
    for extension in EXTENSIONS:
        delete(tmp_path / "copy", extension)
    done = run_in(tmp_path / "copy", "-m", "tests.support.extensions.core", str(tmp_path / "home"), str(base_model))
    assert done.stdout.endswith("the core works alone\n"), done.stdout + done.stderr


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By extension, what does not work where it is deleted."""
    folder = tmp_path_factory.mktemp("copy")
    copy_packages(folder)
    done = run_in(folder, "-m", "tests.support.extensions.imports", str(folder))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_without_one_extension_all_other_modules_are_imported(problems: dict[str, str], module: str) -> None:
    assert problems[module] == ""
