"""The files of deploy/, and the command lines of ours that stand in them."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
TRAIN = DEPLOY / "kubernetes-train"
FLEET = DEPLOY / "kubernetes-fleet"

_CALL = re.compile(r"(?:^|[\s(]|bin/)art-langgraph +(?P<words>[a-z][^\n)&|;>]+)", re.M)


def commands() -> list[tuple[str, tuple[str, ...]]]:
    """Every call of `art-langgraph` in the files, their comments included: the file, and the words of the call."""
    return sorted({(path, tuple(words)) for path, words in _commands()})


def _commands() -> Iterator[tuple[str, list[str]]]:
    for path in sorted(path for path in DEPLOY.rglob("*") if path.is_file()):
        name = path.relative_to(ROOT).as_posix()
        text = re.sub(r"\n#?\s*(?=--)", " ", re.sub(r"\\\n[# ]*", "", path.read_text()))
        for call in _CALL.finditer(text):
            if call["words"] != "trainer server":  # a description
                yield name, shlex.split(filled(call["words"].rstrip("`. ")))
    for name, words in _in_containers():
        yield name, [filled(word) for word in words]


def _in_containers() -> Iterator[tuple[str, list[str]]]:
    """Commands that are lists of words."""
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    yield "deploy/docker/Dockerfile", json.loads(re.findall(r"^CMD (\[.*\])$", dockerfile, re.M)[-1])
    for path in sorted((DEPLOY / "docker").glob("compose*.yaml")):
        for service in yaml.safe_load(path.read_text())["services"].values():
            yield path.relative_to(ROOT).as_posix(), service["command"]
    for path, manifest in manifests():
        for container in containers(manifest):
            if "args" in container:
                yield path, container["args"]


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Kubernetes' objects, with their files."""
    for path in sorted(path for folder in (KUBERNETES, FLEET, TRAIN) for path in folder.glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text()):
            yield path.relative_to(ROOT).as_posix(), manifest


def containers(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The containers of an object's pods."""
    pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
    return list(pod.get("containers", []))


def model_settings() -> dict[str, str]:
    """What server and engines are given alike."""
    made = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["configMapGenerator"]
    return dict(literal.split("=", 1) for one in made for literal in one["literals"])


def filled(word: str) -> str:
    """A word with the values of its variables."""
    known = {**model_settings(), "KIND": "cpu"}
    word = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word)
    return re.sub(r"\$\((\w+)\)|\"?\$(\w+)\"?", lambda found: known[found[1] or found[2]], word)


def unit() -> configparser.ConfigParser:
    """The unit of systemd."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "systemd" / "art-langgraph.service")
    return parser
