"""Base models: what `--model` and `--revision` name, and what is said when they name nothing."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.serving import serving
from trainer_server.engines import served_model
from trainer_server.engines.served_model import ServedModel, resolve
from trainer_server.policies.model_card import model_card
from trainer_server.training.export import embedded
from trainer_server.wire import ConfigError, EngineError, Policy, PolicySpec, Version

COMMITS = {"main": "a" * 40, "v1": "b" * 40}
"""By branch or tag."""
FILES = {
    "config.json": '{"model_type": "llama"}',
    "model.safetensors": "weights of {}",
    "original/consolidated.00.pth": "the same weights again",
    "pytorch_model.bin": "and again",
}


def hub() -> Starlette:
    """A hub with the models `lab/open` and `lab/gated`."""

    def refusal(status: int, code: str) -> Response:
        return JSONResponse({"error": code}, status, headers={"X-Error-Code": code, "X-Error-Message": code})

    def commit(request: Request) -> str | None:
        revision = request.path_params["revision"]
        return COMMITS.get(revision) or (revision if revision in COMMITS.values() else None)

    async def info(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ("open", "gated"):
            return refusal(404, "RepoNotFound")
        if (sha := commit(request)) is None:
            return refusal(404, "RevisionNotFound")
        return JSONResponse({"id": f"lab/{name}", "sha": sha, "siblings": [], "tags": [], "downloads": 0, "likes": 0})

    async def tree(_request: Request) -> Response:
        return JSONResponse([{"type": "file", "path": one, "size": 1, "oid": one} for one in FILES])

    async def file(request: Request) -> Response:
        if request.path_params["name"] == "gated":
            return refusal(403, "GatedRepo")
        sha, path = str(commit(request)), request.path_params["path"]
        asked.append(path)
        text = FILES[path].replace("{}", sha)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return Response(text, headers={"ETag": f'"{digest}"', "X-Repo-Commit": sha})

    asked: list[str] = []
    app = Starlette(
        routes=[
            Route("/api/models/lab/{name}/revision/{revision}", info),
            Route("/api/models/lab/{name}", lambda request: refusal(404, "RepoNotFound")),
            Route("/api/models/lab/{name}/tree/{revision}", tree),
            Route("/lab/{name}/resolve/{revision}/{path:path}", file, methods=["GET", "HEAD"]),
        ]
    )
    app.state.asked = asked
    return app


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files that were asked for, of the hub that is found."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    app = hub()
    with serving(app) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield app.state.asked


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


@pytest.mark.parametrize(
    ("model", "revision", "words"),
    [
        ("lab/gated", None, "is gated: ask for access at https://huggingface.co/lab/gated, and set HF_TOKEN"),
        ("lab/none", None, "there is neither such a directory nor such a model on the hub"),
        ("lab/open", "v9", "--revision v9: https://huggingface.co/lab/open has no such branch, tag or commit"),
        ("lab/-open-", None, "neither a directory nor a hub id"),
    ],
)
def test_a_model_that_cannot_be_had_is_named_with_the_remedy(
    asked: list[str], tmp_path: Path, model: str, revision: str | None, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(model, tmp_path, revision=revision)
    assert words in str(refused.value)


def test_without_the_hub_a_model_comes_from_this_machine_or_that_is_said(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = resolve("lab/open", tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert resolve("lab/open", tmp_path) == there
    with pytest.raises(EngineError, match="lab/gated is not on this machine, and cannot be downloaded"):
        resolve("lab/gated", tmp_path)


@pytest.mark.parametrize("model", ["embedded", "{}"])
def test_a_revision_is_for_models_of_the_hub(base_model: Path, tmp_path: Path, model: str) -> None:
    with pytest.raises(ConfigError, match="--revision v1 is for models of the hub"):
        resolve(model.format(base_model), tmp_path, revision="v1")


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
    assert (served_model._RECIPE, hashlib.sha256(code.encode()).hexdigest()[:12]) == (1, "9b988cdfcb8c")


def test_telemetry_and_the_hub_are_off_in_processes_that_load_the_model(tmp_path: Path) -> None:
    variables = ServedModel("base", str(tmp_path)).process_environment("0")
    assert variables.items() >= {"HF_HUB_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": "0"}.items()
