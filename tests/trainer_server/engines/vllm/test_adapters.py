"""The plugin that fetches adapters from the trainer server: the real server's routes, and connections that break."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from testbed.engine_app import make_app
from tests.support.engines.plugins import engine_plugin
from tests.support.fuzzing import json_values, spoiled, thorough
from tests.support.homes.versions import publish
from tests.support.proxies.refusing_proxy import refusing_proxy, without_proxies
from tests.support.servers.serving import serving
from trainer_server.common import Home
from trainer_server.engines.adapter_files import FILES, adapter_files
from trainer_server.policies.store import AdapterStore
from trainer_server.server.access.tokens import Scope as TokenScope
from trainer_server.server.access.tokens import TokenRepository
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import PolicySpec

KEY = "engine's key"
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = engine_plugin("art_adapters")
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    return module


@dataclass(slots=True)
class Line:
    """The network between server and engine."""

    app: ASGIApp
    cuts: list[int] = field(default_factory=list)
    """Bytes of its body after which the next answer with a file breaks off, and the one after it, and so on."""
    change: Callable[[bytes], bytes] = bytes
    """What becomes of the bytes of files."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and range of each request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.asked.append((scope["path"], headers.get("range")))
        if scope["type"] != "http" or not scope["path"].endswith(WEIGHTS):
            await self.app(scope, receive, send)
            return
        left = self.cuts.pop(0) if self.cuts else None

        async def cut(message: Message) -> None:
            nonlocal left
            body = self.change(message.get("body", b""))
            if left is not None and len(body) > left:
                await send({**message, "body": body[:left], "more_body": True})
                raise ConnectionResetError("the line is cut")
            if left is not None:
                left -= len(body)
            await send({**message, "body": body} if "body" in message else message)

        await self.app(scope, receive, cut)

    def ranges(self) -> list[str | None]:
        """Of the requests for the weights."""
        return [asked for path, asked in self.asked if path.endswith(WEIGHTS)]


@dataclass(slots=True)
class Trainer:
    """A trainer server with versions of the policy `agent`."""

    url: str
    line: Line
    store: AdapterStore
    home: Home

    def version(self, number: int) -> Path:
        """Another version, of 400 kB. Its directory."""
        publish(self.store, "agent", number)
        weights = np.random.default_rng(number).random((500, 200), np.float32)
        save_file({"lora_A": weights}, self.store.directory("agent", number) / WEIGHTS)
        return self.store.directory("agent", number)

    def path(self, number: int, file: str = "") -> str:
        return f"/api/policies/agent/versions/{number}/files{'/' if file else ''}{file}"


@contextmanager
def trainer_at(root: Path, base: Path) -> Iterator[Trainer]:
    home = Home(root)
    store = AdapterStore(home.policies)
    store.register(PolicySpec(name="agent"), base.name)
    publish(store, "agent", 0)
    config = ServerConfig(home, model=str(base), engine_urls=("http://127.0.0.1:1",), engine_api_key=KEY)
    line = Line(create_app(config, "server's key"))
    with serving(line, lifespan="off") as url:
        yield Trainer(url, line, store, home)


@pytest.fixture
def trainer(tmp_path: Path, base_model: Path) -> Iterator[Trainer]:
    with trainer_at(tmp_path / "server", base_model) as running:
        yield running


@pytest.fixture
def adapters(plugin: Any, trainer: Trainer, tmp_path: Path) -> Any:
    return plugin.Adapters(tmp_path / "engine", trainer.url, KEY)


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in FILES}


def test_a_version_arrives_as_it_is_and_once(trainer: Trainer, adapters: Any, plugin: Any) -> None:
    source = trainer.version(1)
    held = adapters.get("agent", 1)
    assert held.path.name == adapter_files(source).digest
    assert contents(held.path) == contents(source)
    assert sorted(path.name for path in held.path.iterdir()) == sorted(plugin.FILES) == sorted(FILES)
    held.close()
    adapters.get("agent", 1).close()
    assert trainer.line.ranges() == [None], "the second time it is there"
    audit = trainer.home.audit.joinpath("audit.jsonl").read_text().splitlines()
    assert {(line["who"], line["action"], line["target"]) for line in map(json.loads, audit)} == {
        ("engine-key", "version.fetch", "agent@1")
    }


def test_what_is_missing_is_asked_for_after_a_cut(trainer: Trainer, adapters: Any) -> None:
    source = trainer.version(1)
    trainer.line.cuts = [100_000, 200_000]
    held = adapters.get("agent", 1)
    assert trainer.line.ranges() == [None, "bytes=100000-", "bytes=300000-"]
    assert contents(held.path) == contents(source)


def test_an_engine_that_is_started_again_goes_on_where_the_last_one_was(
    trainer: Trainer, adapters: Any, plugin: Any, tmp_path: Path
) -> None:
    source = trainer.version(1)
    trainer.line.cuts = [100_000, *[0] * 5]
    with pytest.raises(plugin.NotFetched, match="agent@1 could not be fetched from http"):
        adapters.get("agent", 1)
    assert [path.name for path in (tmp_path / "engine").iterdir() if path.is_dir()] == [
        f"{adapter_files(source).digest}.part"
    ]
    trainer.line.asked.clear()
    held = plugin.Adapters(tmp_path / "engine", trainer.url, KEY).get("agent", 1)
    assert trainer.line.ranges() == ["bytes=100000-"]
    assert contents(held.path) == contents(source)


def test_what_arrived_is_not_gone_on_with_where_the_version_is_another_one(
    trainer: Trainer, adapters: Any, plugin: Any
) -> None:
    trainer.version(1)
    trainer.line.cuts = [100_000, *[0] * 5]
    with pytest.raises(plugin.NotFetched):
        adapters.get("agent", 1)
    other = trainer.store.directory("agent", 1)
    save_file({"lora_A": np.zeros((500, 200), np.float32)}, other / WEIGHTS)
    assert contents(adapters.get("agent", 1).path) == contents(other)


def test_a_wrong_checksum_is_refused_and_leaves_nothing(
    trainer: Trainer, adapters: Any, plugin: Any, tmp_path: Path
) -> None:
    source = trainer.version(1)
    trainer.line.change = lambda body: body.replace(b"lora_A", b"lora_B")
    expected = next(file.sha256 for file in adapter_files(source).files if file.name == WEIGHTS)
    with pytest.raises(plugin.NotFetched) as refused:
        adapters.get("agent", 1)
    assert f"{WEIGHTS} has the SHA-256 " in str(refused.value)
    assert f"and the server says {expected}" in str(refused.value)
    assert list((tmp_path / "engine").rglob(WEIGHTS)) == []
    trainer.line.change = bytes
    assert contents(adapters.get("agent", 1).path) == contents(source), "the next try begins anew"


def test_bytes_beyond_the_end_are_refused(trainer: Trainer, adapters: Any, plugin: Any) -> None:
    source = trainer.version(1)
    answer = adapter_files(source)
    answer.files[1].size -= 1

    async def lies(scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import FileResponse, JSONResponse

        file = scope["path"].rpartition("/")[2]
        answered = JSONResponse(answer.model_dump()) if file == "files" else FileResponse(source / file)
        await answered(scope, receive, send)

    with serving(lies, lifespan="off") as url, pytest.raises(plugin.NotFetched, match="more bytes than the"):
        plugin.Adapters(adapters._root, url, KEY).get("agent", 1)


LIST = {
    "digest": "0" * 64,
    "files": [{"name": name, "size": 4, "sha256": hashlib.sha256(b"file").hexdigest()} for name in FILES],
}
others = json_values(st.sampled_from(["name", "size"])) | st.sampled_from([WEIGHTS, "../x", -1, 5.0, "f" * 64])


@thorough(60)
@given(data=st.data())
def test_whatever_a_server_answers_is_fetched_whole_or_not_at_all(data: st.DataObject) -> None:
    plugin = engine_plugin("art_adapters")
    answers = {"files": json.dumps(data.draw(spoiled(LIST, others))).encode(), **dict.fromkeys(FILES, b"file")}

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(answers[request.url.path.rpartition("/")[2]]))

    with TemporaryDirectory() as scratch, httpx.Client(transport=httpx.MockTransport(answer)) as http:
        root = Path(scratch, "engine")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plugin, "_PAUSE", 0.0)
            try:
                held = plugin.Adapters(root, "http://server", KEY)._get(http, "http://server/api/x/files")
            except plugin.NotFetched:
                assert not [path for path in root.glob("*") if len(path.name) == 64]
            else:
                assert contents(held.path) == dict.fromkeys(FILES, b"file")
                held.close()
        assert [path.name for path in Path(scratch).iterdir()] in ([], ["engine"])


def test_a_damaged_file_on_the_engine_s_disk_is_fetched_again(trainer: Trainer, adapters: Any) -> None:
    source = trainer.version(1)
    held = adapters.get("agent", 1)
    (held.path / WEIGHTS).write_bytes(bytes(400_000))
    held.close()
    assert contents(adapters.get("agent", 1).path) == contents(source)


def test_adapters_that_nobody_holds_are_deleted_beyond_the_newest_ones(
    trainer: Trainer, adapters: Any, plugin: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plugin, "_IDLE", 1)
    beside = plugin.Adapters(tmp_path / "engine", trainer.url, KEY)  # another vLLM of this machine
    paths = []
    for number in range(1, 6):
        trainer.version(number)
        held = (beside if number == 1 else adapters).get("agent", number)
        os.utime(held.path, (number, number))
        paths.append(held.path)
        if number not in (1, 3):
            held.close()
    adapters.get("agent", 5)
    assert [path.exists() for path in paths] == [True, False, True, True, True], (
        "1 and 3 are held, 4 is the newest idle"
    )


@pytest.mark.parametrize(
    ("key", "number", "words"),
    [
        ("wrong", 1, "it answered 401: it does not know this engine's key: give ART_ENGINE_API_KEY the same value"),
        (KEY, 7, "it answered 404: policy 'agent' has no version 7; its newest is "),
        ("rollout", 1, "it answered 403: GET .* needs a token of scope engine"),
    ],
)
def test_what_the_server_refuses_is_said_with_the_remedy(
    trainer: Trainer, plugin: Any, tmp_path: Path, key: str, number: int, words: str
) -> None:
    trainer.version(1)
    given = TokenRepository(trainer.home).create("a", TokenScope.rollout) if key == "rollout" else key
    with pytest.raises(plugin.NotFetched, match=words):
        plugin.Adapters(tmp_path / "engine", trainer.url, given).get("agent", number)


def test_a_server_that_is_none_and_one_that_does_not_answer_are_named(plugin: Any, tmp_path: Path) -> None:
    with serving(make_app()) as url, pytest.raises(plugin.NotFetched, match=f"could not be fetched from {url}: .*404"):
        plugin.Adapters(tmp_path, url, KEY).get("agent", 1)
    with pytest.raises(plugin.NotFetched, match=r"ConnectError.*Is that its address as this machine sees it\?"):
        plugin.Adapters(tmp_path, url, KEY).get("agent", 1)


def test_a_server_on_this_machine_is_fetched_from_without_the_proxy_and_another_one_by_it(
    trainer: Trainer, adapters: Any, plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = trainer.version(1)
    without_proxies(monkeypatch)
    with refusing_proxy() as proxy:
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        assert contents(adapters.get("agent", 1).path) == contents(source)
        assert proxy.asked == []
        with pytest.raises(plugin.NotFetched, match=r"does it need the proxy of the environment \(NO_PROXY\)\?"):
            plugin.Adapters(tmp_path, "https://trainer.example", KEY).get("agent", 1)
    assert proxy.asked == ["CONNECT trainer.example:443"]


def test_a_token_of_scope_engine_opens_the_files_and_nothing_else(
    trainer: Trainer, plugin: Any, tmp_path: Path
) -> None:
    trainer.version(1)
    token = TokenRepository(trainer.home).create("gpu-1", TokenScope.engine)
    plugin.Adapters(tmp_path / "engine", trainer.url, token).get("agent", 1)
    for key in (token, KEY):
        for path in ("/api/policies", "/v1/models", "/api/jobs", "/api/policies/agent/versions/1/export"):
            answer = httpx.get(f"{trainer.url}{path}", headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 403, path
            assert "of scope engine" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/policies/agent/versions/1/files/version.json", 422),
        ("/api/policies/agent/versions/1/files/..%2Fversion.json", 404),
        ("/api/policies/agent/versions/1/files/%2Fetc%2Fpasswd", 404),
        ("/api/policies/..%2F..%2Fetc/versions/1/files", 404),
        ("/api/policies/..%2Fagent/versions/1/files/adapter_config.json", 404),
        ("/api/policies/none/versions/1/files", 404),
        ("/api/policies/agent/versions/99999999999999999999/files", 404),
        ("/api/policies/agent/versions/-1/files", 404),
    ],
)
def test_no_path_of_a_request_reaches_the_disk(trainer: Trainer, path: str, status: int) -> None:
    trainer.version(1)
    answer = httpx.get(f"{trainer.url}{path}", headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == status, answer.text


def test_a_version_whose_files_are_gone_is_not_found(trainer: Trainer) -> None:
    (trainer.version(1) / WEIGHTS).unlink()
    for file in ("", WEIGHTS):
        answer = httpx.get(trainer.url + trainer.path(1, file), headers={"Authorization": f"Bearer {KEY}"})
        assert answer.status_code == 404
        assert "the files of agent@1 cannot be read: No such file" in answer.json()["error"]["message"]


@pytest.fixture
def engine(
    trainer: Trainer, plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[httpx.Client, dict[str, Any]]]:
    """The small engine behind the middleware, and its state."""
    monkeypatch.delenv("ART_API_KEY", raising=False)
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setenv("ART_ADAPTERS_FROM", f"{trainer.url}/v1")
    monkeypatch.setenv("ART_ADAPTERS", str(tmp_path / "engine"))
    app = make_app()
    app.add_middleware(plugin.Fetched)
    app.add_middleware(engine_plugin("art_key").KeyOnly)
    headers = {"Authorization": f"Bearer {KEY}"}
    with serving(app) as url, httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        yield http, app.state.engine


def load(http: httpx.Client, name: str, path: str = "/srv/home/policies/agent/versions/1") -> httpx.Response:
    return http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})


def test_vllm_reads_what_was_fetched_and_its_files_stay_while_it_holds_them(
    trainer: Trainer, engine: tuple[httpx.Client, dict[str, Any]], plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "_IDLE", 0)
    http, state = engine
    sources = [trainer.version(number) for number in (1, 2, 3)]
    assert load(http, "agent@1").status_code == 200
    first = Path(state["loaded"]["agent@1"])
    assert contents(first) == contents(sources[0])
    assert load(http, "agent@1").status_code == 400, "it has it already"
    assert load(http, "agent@2").status_code == 200
    assert first.exists()
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "agent@1"}).status_code == 200
    assert load(http, "agent@3").status_code == 200
    assert not first.exists()
    assert Path(state["loaded"]["agent@2"]).exists()


def test_what_cannot_be_fetched_is_not_loaded_and_vllm_says_why(
    trainer: Trainer, engine: tuple[httpx.Client, dict[str, Any]]
) -> None:
    http, state = engine
    answer = load(http, "agent@9")
    assert answer.status_code == 502
    assert "agent@9 could not be fetched from http" in answer.json()["error"]["message"]
    assert state["loaded"] == {}


def test_requests_without_the_key_fetch_nothing(trainer: Trainer, engine: tuple[httpx.Client, dict[str, Any]]) -> None:
    http, _ = engine
    trainer.version(1)
    http.headers.pop("Authorization")
    assert load(http, "agent@1").status_code == 401
    assert trainer.line.asked == []


@pytest.mark.parametrize("name", ["mine", "agent@latest", "../x@1", "a/b@1"])
def test_other_adapters_are_read_where_they_are(
    trainer: Trainer, engine: tuple[httpx.Client, dict[str, Any]], name: str
) -> None:
    http, state = engine
    source = trainer.version(1)
    assert load(http, name, str(source)).status_code == 200
    assert state["loaded"] == {name: str(source)}
    assert trainer.line.asked == []
    assert http.get("/v1/models").status_code == 200
    assert http.post("/v1/load_lora_adapter", content=b"no json").status_code >= 400
