"""A vLLM whose internals differ: it starts, what is not there is named, and what depends on it learns of that."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette

from testbed.engine_app import make_app
from tests.support.engines.plugins import engine_plugin, write_vllm
from tests.support.engines.wheels import Sources, documented_table, features
from tests.support.servers.serving import serving
from trainer_server.common import Home
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.vllm.engine import VLLMEngine
from trainer_server.engines.vllm.install import CPU_REQUIREMENT, CUDA_REQUIREMENT
from trainer_server.engines.vllm.registry import WHOLE_ADAPTERS
from trainer_server.wire import EngineError

NAMES = engine_plugin("art_parts").PLUGINS
PARTS = {name: engine_plugin(name).PARTS for name in NAMES}
ALL = [part for features in PARTS.values() for parts in features.values() for part in parts]
APPLY_HEAD = "vllm.model_executor.layers.logits_processor:LogitsProcessor._apply_head"


@pytest.fixture
def forgotten_vllm() -> Iterator[None]:
    """Modules of an imitated vLLM are not left to other tests."""
    yield
    if library := getattr(sys.modules["art_cpu_lora"].register, "library", None):
        library._destroy()  # else it could not be defined again
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.fixture
def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten_vllm: None):  # type: ignore[no-untyped-def]
    """Makes vLLM have all parts but these, and starts the plugins in it. Returns what they say is missing."""

    def start(*lacking: str) -> dict[str, list[str]]:
        write_vllm(tmp_path, [part for part in ALL if part not in lacking])
        monkeypatch.syspath_prepend(str(tmp_path))
        parts = engine_plugin("art_parts")
        for name in NAMES:
            engine_plugin(name).register()
        return dict(parts.missing())

    return start


def test_a_vllm_that_has_everything_is_changed_without_a_word(without, caplog) -> None:  # type: ignore[no-untyped-def]
    assert without() == {}
    assert caplog.messages == []
    from vllm.lora.model_manager import LoRAModelManager

    changed = LoRAModelManager.activate_adapter
    assert changed.__wrapped__ is not inspect.unwrap(changed)  # one plugin goes on from the other's


@pytest.mark.parametrize("part", sorted(set(ALL)))
def test_a_part_that_is_not_there_is_named_and_ends_nothing(part: str, without, caplog) -> None:  # type: ignore[no-untyped-def]
    missing = without(part)
    features = {feature for plugin in PARTS.values() for feature, parts in plugin.items() if part in parts}
    assert missing == {feature: [part] for feature in features}
    for feature in features:
        assert f"this vLLM has not {part}: {feature} is left out" in caplog.text


def test_wheels_are_read_as_a_running_vllm_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten_vllm: None
) -> None:
    there = sorted(set(ALL))[::2]
    write_vllm(tmp_path, there)
    monkeypatch.syspath_prepend(str(tmp_path))
    parts = engine_plugin("art_parts")
    sources = Sources(lambda path: (tmp_path / path).read_text() if (tmp_path / path).is_file() else None)
    for part in ALL:
        assert sources.has(part) == parts.present(part) == (part in there), part


def test_a_wheel_is_read_through_imports_bases_and_conditions() -> None:
    files = {
        "p/__init__.py": "from .a import *\nfrom p.b import Old as New\n",
        "p/a.py": "class Base:\n    field: int = 0\n    def f(self, x, y=1): self.seen = x\n",
        "p/b.py": "import sys\nfrom . import a\nfrom .a import Base\nif sys:\n    class Old(Base):\n        pass\n",
    }
    sources = Sources(files.get)
    for part in ("p:Base.f(x, y)", "p:New.f(x)", "p:New.self.seen", "p.b:Old.field", "p:New"):
        assert sources.has(part), part
    for part in ("p:Base.f(y)", "p:New.g", "p:New.self.x", "p.c:Old", "p:Old", "p:Base.field(x)"):
        assert not sources.has(part), part


def test_the_documented_table_has_every_feature_and_the_version_that_is_installed() -> None:
    rows = [line.split(" | ") for line in documented_table().splitlines() if line.startswith("|")]
    named = {(row[0].strip("| `"), row[1]) for row in rows[2:]}
    assert named == {(owner, feature) for owner, by_feature in features().items() for feature in by_feature}
    for requirement in (CPU_REQUIREMENT, CUDA_REQUIREMENT):
        column = rows[0].index(requirement.partition("==")[2])
        assert {row[column] for row in rows[2:]} == {"yes"}


def test_a_method_with_other_parameters_is_not_there(without) -> None:  # type: ignore[no-untyped-def]
    (part,) = (part for part in ALL if part.startswith(APPLY_HEAD))
    engine_plugin("art_parts")
    without()
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    parts = engine_plugin("art_parts")
    LogitsProcessor._apply_head = lambda self, lm_head, hidden_states, embedding_bias: None
    assert parts.present(part)
    LogitsProcessor._apply_head = lambda self, hidden_states, lm_head: None
    assert not parts.present(part)


def test_a_plugin_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    parts = engine_plugin("art_parts")

    @parts.harmless
    def register() -> None:
        raise RuntimeError("no such operator")

    register()
    assert parts.missing() == {__name__: ["RuntimeError: no such operator"]}
    assert "no such operator" in caplog.text


def test_the_key_plugin_answers_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    parts = engine_plugin("art_parts")
    assert not parts.have("anything", {"anything": ("json:loads", "json:no_such_name")})
    app = Starlette()
    app.add_middleware(engine_plugin("art_key").KeyOnly)
    with serving(app) as url, httpx.Client(base_url=url) as http:
        assert http.get("/art/plugins").status_code == 401
        answer = http.get("/art/plugins", headers={"Authorization": "Bearer secret"})
    assert answer.json() == {"missing": {"anything": ["json:no_such_name"]}}


def test_the_key_plugin_answers_how_many_requests_vllm_computes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    engine_plugin("art_parts")
    app = Starlette()
    app.state.vllm_config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=256), parallel_config=SimpleNamespace(data_parallel_size=2)
    )
    app.add_middleware(engine_plugin("art_key").KeyOnly)
    with serving(app) as url, httpx.Client(base_url=url) as http:
        answer = http.get("/art/plugins", headers={"Authorization": "Bearer secret"})
    assert answer.json() == {"missing": {}, "max_num_seqs": 512}


@pytest.mark.parametrize("count", [None, 512])
async def test_an_engine_tells_how_many_requests_it_computes_at_once(
    count: int | None, settings: EngineSettings
) -> None:
    app = make_app()
    app.state.engine["max_num_seqs"] = count
    with serving(app) as url:
        engine = VLLMEngine.at(url, settings)
        await engine.check()
        assert engine.describe()["max_num_seqs"] == count
        await engine.stop()


@pytest.fixture
def settings(tmp_path: Path) -> EngineSettings:
    return EngineSettings(base=ServedModel("base", str(tmp_path)), home=Home(tmp_path / "home"), cpu=True)


def test_the_server_knows_the_check_of_adapters_by_its_name() -> None:
    assert WHOLE_ADAPTERS == (engine_plugin("art_applied").FEATURE, "art_applied")


@pytest.mark.parametrize("name", WHOLE_ADAPTERS)
async def test_a_vllm_that_cannot_check_adapters_is_not_used(name: str, settings: EngineSettings) -> None:
    app = make_app()
    app.state.engine["missing"] = {name: ["vllm.lora.model_manager:LoRAModelManager.activate_adapter(lora_id)"]}
    with serving(app) as url:
        engine = VLLMEngine.at(url, settings)
        with pytest.raises(EngineError, match=r"cannot check .* has not vllm\.lora\.model_manager.*engine install"):
            await engine.check()
        await engine.stop()


@pytest.mark.parametrize("missing", [None, {}, {"fp32 logits": [APPLY_HEAD]}])
async def test_what_a_vllm_goes_without_is_logged_once_and_shown(
    missing: dict[str, list[str]] | None, settings: EngineSettings, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()
    app.state.engine["missing"] = missing
    with serving(app) as url:
        engine = VLLMEngine.at(url, settings)
        assert engine.describe()["missing"] is None
        for _ in range(2):
            await engine.check()
        assert engine.describe()["missing"] == ("unknown" if missing is None else missing)
        json.dumps(engine.describe())
        await engine.stop()
    said = [message for message in caplog.messages if url in message]
    assert len(said) == (1 if missing != {} else 0)
    if missing:
        assert f"goes without fp32 logits (it has not {APPLY_HEAD})" in said[0]
