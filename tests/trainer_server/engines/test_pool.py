"""Several engines behind one gateway: who answers, what a swap needs, and engines that are killed and come back."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from typer.testing import CliRunner

from art_langgraph.cli.main import build
from testbed.engine_app import make_app, weights
from testbed.engine_stand_in import install_stand_in
from tests.support.engines.letters import LettersEngine
from tests.support.patience import PATIENCE
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TOKEN, TrainerServer, trainer_server_over
from trainer_server.common import Home
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.pool import Engines
from trainer_server.engines.served_model import ServedModel
from trainer_server.engines.vllm.command import command, environment, free_port
from trainer_server.server.app import check_engines, create_app
from trainer_server.server.config import ServerConfig
from trainer_server.wire import ConfigError, EngineError

pytestmark = pytest.mark.slow


@dataclass(slots=True)
class Small:
    """A small engine in a process of its own."""

    name: str
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        line = [sys.executable, "-m", "testbed.engine_app", str(self.port), "--name", self.name, *self.options]
        self.process = subprocess.Popen(line)
        until(lambda: answers(self.url))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def state(self, **changes: Any) -> dict[str, Any]:
        return dict(httpx.post(f"{self.url}/state", json=changes).json())


def until(found: Callable[[], Any]) -> Any:
    """What `found` gives once it gives something true."""
    deadline = time.monotonic() + PATIENCE
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def engines(*small: Small) -> Iterator[tuple[Small, ...]]:
    try:
        for one in small:
            one.start()
        yield small
    finally:
        for one in small:
            if one.process:
                one.kill()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[tuple[TrainerServer, Small, Small]]:
    """A server with the policy `agent`, over two engines."""
    home = tmp_path_factory.mktemp("pair")
    right = Small("right")  # comes when the server is there already
    with (
        engines(Small("left")) as (left,),
        trainer_server_over((left.url, right.url), home, base_model) as server,
        engines(right),
        server.http() as http,
    ):
        assert http.post("/api/policies", json={"name": "agent"}).status_code == 201
        yield server, left, right


@pytest.fixture
def two(pair: tuple[TrainerServer, Small, Small]) -> tuple[TrainerServer, Small, Small]:
    """The same, with both engines up and as they were at first."""
    server, *small = pair
    for one in small:
        if not answers(one.url):
            one.start()
        one.state(load_seconds=0.0, blind=False, requests=[])
    until(lambda: health(server)["engines"] == [True, True])
    return pair


_names = (f"rollout-{number}" for number in itertools.count())


def new(count: int) -> list[str]:
    """Rollouts that no engine has seen."""
    return list(itertools.islice(_names, count))


def health(server: TrainerServer) -> dict[str, Any]:
    return dict(httpx.get(f"{server.url}/health", headers=server.headers).json())


def say(server: TrainerServer, content: str, rollout: str | None = None, **body: Any) -> httpx.Response:
    with server.http() as http:
        full = {"model": "agent", "messages": [{"role": "user", "content": content}], **body}
        return http.post("/v1/chat/completions", json=full, headers={"X-ART-Rollout": rollout} if rollout else {})


def text(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def where(server: TrainerServer, rollout: str) -> str:
    return text(say(server, "where", rollout))


def step(server: TrainerServer, policy: str = "agent") -> int:
    """One training step; the version that it made."""
    job = finished_step(server, policy)
    assert job["status"] == "succeeded", job
    return int(job["result"]["version"])


def finished_step(server: TrainerServer, policy: str) -> dict[str, Any]:
    with server.http() as http:
        refs = [
            {"id": f"t{reward}", "reward": reward, "completions": [say(server, "say aaa", model=policy).json()["id"]]}
            for reward in (0.0, 1.0)
        ]
        body = {"groups": [{"scenario_id": "s", "trajectories": refs}], "config": {"lr": 1e-2}}
        made = http.post(f"/api/policies/{policy}/steps", json=body).json()
        return dict(http.get(f"/api/jobs/{made['id']}", params={"wait": 50}).json())


def newest(server: TrainerServer) -> int:
    with server.http() as http:
        return int(http.get("/api/policies/agent").json()["latest"])


def weights_on_disk(server: TrainerServer, policy: str, version: int) -> str:
    return weights(str(server.home.policies / policy / "versions" / str(version)))


Two = tuple[TrainerServer, Small, Small]


def test_rollouts_are_spread_and_each_keeps_its_engine(two: Two) -> None:
    server, *_ = two
    homes = {rollout: where(server, rollout) for rollout in new(8)}
    assert sorted(homes.values()) == ["left"] * 4 + ["right"] * 4
    for _ in range(2):
        assert {rollout: where(server, rollout) for rollout in homes} == homes


def test_rollouts_share_an_engine_where_their_scenario_has_a_long_prompt(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer_server.gateway.sampler._LONG_PROMPT", 500)  # the contexts of these engines are short
    server, *_ = two
    where_they_are: dict[str, list[str]] = {}
    for role, context in (("user", "a" * 500), ("user", "b" * 500), ("system", "c" * 500)):
        turns = [{"role": role, "content": context}, {"role": "user", "content": "where"}]
        where_they_are[context[0]] = [text(say(server, "", rollout, messages=turns)) for rollout in new(4)]
    assert len(set(where_they_are["a"])) == len(set(where_they_are["b"])) == 1
    assert where_they_are["a"] != where_they_are["b"]
    assert sorted(where_they_are["c"]) == ["left"] * 2 + ["right"] * 2  # all scenarios may share a system message


def test_a_new_rollout_goes_to_the_engine_with_fewer_requests(two: Two) -> None:
    server, left, right = two
    slow = threading.Thread(target=say, args=(server, "after 3 say x", *new(1)))
    slow.start()
    taken = until(lambda: next((one for one in (left, right) if one.state()["requests"]), None))
    other = {"left": "right", "right": "left"}[taken.name]
    assert [where(server, rollout) for rollout in new(4)] == [other] * 4
    slow.join(PATIENCE)


def test_a_conversation_without_a_rollout_keeps_its_engine(two: Two) -> None:
    server, *_ = two
    homes: list[set[str]] = []
    for number in range(4):
        turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": f"question {number}"}]
        said = set()
        for _ in range(3):
            turns += [{"role": "assistant", "content": "hm"}, {"role": "user", "content": "where"}]
            said.add(text(say(server, "", messages=turns)))
        homes.append(said)
    assert [len(said) for said in homes] == [1] * 4
    assert set.union(*homes) == {"left", "right"}


def test_a_version_goes_live_once_all_engines_hold_it(two: Two) -> None:
    server, left, right = two
    right.state(load_seconds=1.0)
    done = threading.Event()
    early: list[str] = []
    old = weights_on_disk(server, "agent", newest(server))

    def ask() -> None:
        while not done.is_set():
            said = text(say(server, "who"))
            if said != old and f"agent@{newest(server)}" not in right.state()["loaded"]:
                early.append(said)

    asking = threading.Thread(target=ask)
    asking.start()
    version = step(server)
    done.set()
    asking.join(PATIENCE)
    assert early == []
    assert f"agent@{version}" in left.state()["loaded"]
    assert {text(say(server, "who", rollout)) for rollout in new(4)} == {weights_on_disk(server, "agent", version)}


def test_a_killed_engine_is_left_out_and_comes_back_with_its_adapters(two: Two) -> None:
    server, left, _ = two
    pinned = newest(server)
    homes = {rollout: where(server, rollout) for rollout in new(6)}
    left.kill()
    assert {where(server, rollout) for rollout in homes} == {"right"}  # no error, no wait
    assert until(lambda: health(server)["engines"] == [False, True])
    assert health(server)["ready"]
    assert left.url in until(lambda: health(server)["error"])
    version = step(server)
    with server.http() as http:
        states = http.get("/api/engines").json()["engines"]
        assert [(one["url"] == left.url, one["ready"]) for one in states] == [(True, False), (False, True)]
        for rollout in homes:  # a pinned version is on the other engine too
            one = say(server, "say x", rollout).json()["id"]
            assert http.get(f"/api/completions/{one}").json()["version"] == pinned

    left.start()
    until(lambda: health(server)["engines"] == [True, True])
    state = left.state()
    assert {f"agent@{pinned}", f"agent@{version}"} <= set(state["loaded"])
    assert state["requests"] == []
    assert health(server)["error"] is None
    assert {where(server, rollout) for rollout in new(4)} == {"left", "right"}
    assert {where(server, rollout) for rollout in homes} == {"right"}


def test_an_engine_killed_in_the_middle_of_a_stream(two: Two) -> None:
    server, left, right = two
    (rollout,) = new(1)
    home = {"left": left, "right": right}[where(server, rollout)]
    body = {"model": "agent", "messages": [{"role": "user", "content": "slow"}], "stream": True}
    with server.http() as http:
        with http.stream("POST", "/v1/chat/completions", json=body, headers={"X-ART-Rollout": rollout}) as answer:
            lines = answer.iter_lines()
            first = json.loads(next(lines).removeprefix("data: "))
            home.kill()
            rest = "".join(lines)
        assert "engine_lost" in rest
        assert "[DONE]" not in rest
        found = until(lambda: (r := http.get(f"/api/completions/{first['id']}")).status_code == 200 and r.json())
        assert found["status"] == "failed"
    assert where(server, rollout) != home.name


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_client_has_seen_nothing_of_is_asked_again(two: Two, stream: bool) -> None:
    server, left, right = two
    rollouts = new(4)
    assert {where(server, rollout) for rollout in rollouts} == {"left", "right"}
    found: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda r=r: found.append(say(server, "after 2 say hello", r, stream=stream)))
        for r in rollouts
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(left.state()["requests"]) == len(right.state()["requests"]) == 4)
    left.kill()
    for thread in threads:
        thread.join(PATIENCE)
    assert [answer.status_code for answer in found] == [200] * 4
    for answer in found:
        assert ("[DONE]" in answer.text) is stream
        assert "error" not in answer.text


def test_an_engine_killed_in_the_middle_of_a_swap(two: Two) -> None:
    server, left, right = two
    left.state(load_seconds=60.0)
    made: list[int] = []
    coming = f"agent@{newest(server) + 1}"
    training = threading.Thread(target=lambda: made.append(step(server)))
    training.start()
    until(lambda: coming in right.state()["loaded"])
    assert coming not in left.state()["loaded"]
    left.kill()
    training.join(PATIENCE)
    live = weights_on_disk(server, "agent", made[0])
    assert {text(say(server, "who", rollout)) for rollout in new(4)} == {live}
    left.start()
    until(lambda: health(server)["engines"] == [True, True])
    assert {where(server, rollout) for rollout in new(2)} == {"left", "right"}
    assert {text(say(server, "who", rollout)) for rollout in new(4)} == {live}


def test_an_engine_restarted_between_two_looks_is_noticed(two: Two) -> None:
    server, *small = two
    version = newest(server)
    for one in small:
        one.kill()
        one.start()
        assert {where(server, rollout) for rollout in new(4)} <= {"left", "right"}
        until(lambda one=one: f"agent@{version}" in one.state()["loaded"])
        until(lambda: health(server)["engines"] == [True, True])


def test_with_no_engine_left_requests_wait_for_one(two: Two) -> None:
    server, left, right = two
    left.kill()
    right.kill()
    until(lambda: not health(server)["ready"])
    found: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: found.append(say(server, "where")))
    waiting.start()
    right.start()
    waiting.join(PATIENCE)
    assert text(found[0]) == "right"


def test_an_engine_that_cannot_read_an_adapter_is_not_used(two: Two) -> None:
    server, left, _ = two
    left.state(blind=True)
    version = step(server)
    error = until(lambda: health(server)["error"])
    assert left.url in error
    assert "shared file system" in error
    assert {where(server, rollout) for rollout in new(4)} == {"right"}
    left.state(blind=False)
    until(lambda: health(server)["engines"] == [True, True])
    assert f"agent@{version}" in left.state()["loaded"]


def test_a_version_that_the_living_engines_refuse_is_quarantined_while_another_is_away(two: Two) -> None:
    server, left, right = two
    with server.http() as http:
        assert http.post("/api/policies", json={"name": "misfit"}).status_code == 201
    left.kill()
    until(lambda: health(server)["engines"] == [False, True])
    right.state(refused=["misfit@1"])
    job = finished_step(server, "misfit")
    assert job["status"] == "failed"
    assert "weights of another shape" in job["error"]
    assert text(say(server, "who", model="misfit")) == weights_on_disk(server, "misfit", 0)


def test_an_engine_that_hangs_in_loading_is_left_out_and_the_version_goes_live(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer_server.engines.vllm.dialect._LOAD_TIMEOUT", 2.0)
    with (
        engines(Small("left"), Small("right")) as (left, right),
        trainer_server_over((left.url, right.url), tmp_path, base_model, slot_wait=1.0) as server,
    ):
        with server.http() as http:
            assert http.post("/api/policies", json={"name": "agent"}).status_code == 201
        left.state(load_seconds=600.0)
        assert step(server) == 1
        assert {where(server, rollout) for rollout in new(4)} == {"right"}


def test_an_adapter_that_was_deleted_by_hand_is_named(two: Two) -> None:
    server, *small = two
    with server.http() as http:
        assert http.post("/api/policies", json={"name": "doomed"}).status_code == 201
    files = server.home.policies / "doomed" / "versions" / "0"
    for file in files.glob("adapter_*"):
        file.unlink()
    for one in small:
        one.kill()
        one.start()
    until(lambda: health(server)["engines"] == [True, True])
    answer = say(server, "say x", model="doomed")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "version_unusable")
    assert "doomed@0" in answer.json()["error"]["message"]
    assert say(server, "say x").status_code == 200
    (files / "version.json").unlink()


def test_an_adapter_of_our_name_with_other_weights_is_replaced(two: Two, tmp_path: Path) -> None:
    server, left, _ = two
    left.state(loaded={**left.state()["loaded"], "ours@0": str(tmp_path)})
    with server.http() as http:
        assert http.post("/api/policies", json={"name": "ours"}).status_code == 201
    ours = weights_on_disk(server, "ours", 0)
    assert [text(say(server, "who", rollout, model="ours")) for rollout in new(2)] == [ours] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base": "other"}, ("serves other", "trains base", "--served-model-name base")),
        ({"lora": False}, ("VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "--enable-lora")),
        ({"key": "secret"}, ("ART_ENGINE_API_KEY",)),
    ],
)
async def test_an_engine_that_cannot_serve_is_refused_with_the_remedy(
    options: dict[str, Any], words: tuple[str, ...], tmp_path: Path, base_model: Path
) -> None:
    with serving(make_app()) as good, serving(make_app(**options)) as bad:
        config = ServerConfig(Home(tmp_path), str(base_model), engine_urls=(good, bad))
        with pytest.raises(EngineError) as refused:
            await check_engines(config)
    for word in (bad, *words):
        assert word in str(refused.value)


async def test_what_is_no_engine_is_refused(tmp_path: Path, base_model: Path) -> None:
    with serving(Starlette()) as other:
        config = ServerConfig(Home(tmp_path), str(base_model), engine_urls=(other,))
        with pytest.raises(EngineError, match="the root of a vLLM server"):
            await check_engines(config)


def test_a_server_with_such_an_engine_does_not_start(tmp_path: Path, base_model: Path) -> None:
    with serving(make_app(base="other")) as bad:
        line = [sys.executable, "-m", "trainer_server", "--home", str(tmp_path), "--model", str(base_model)]
        done = subprocess.run(
            [*line, "--port", "0", "--engine-url", bad], capture_output=True, text=True, timeout=PATIENCE
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: the engine at {bad} serves other")


@pytest.mark.parametrize(
    ("urls", "word"),
    [(("localhost:8000",), "http://host:8000"), (("http://127.0.0.1:1", "http://127.0.0.1:1/v1/"), "twice")],
)
async def test_addresses_that_cannot_be_meant(
    tmp_path: Path, base_model: Path, urls: tuple[str, ...], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        await check_engines(ServerConfig(Home(tmp_path), str(base_model), engine_urls=urls))


@pytest.mark.parametrize(
    "given", [{"engine_args": ("--seed", "1")}, {"engine_gpus": ("0",)}, {"tool_call_parser": "hermes"}]
)
async def test_flags_for_engines_that_are_started_elsewhere_are_refused(
    tmp_path: Path, base_model: Path, given: dict[str, Any]
) -> None:
    config = ServerConfig(Home(tmp_path), str(base_model), engine_urls=("http://127.0.0.1:1",), **given)
    with pytest.raises(ConfigError, match="give it where http"):
        await check_engines(config)


def test_an_engine_is_launched_for_each_set_of_gpus(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path))
    install_stand_in(tmp_path, name="$CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    config = ServerConfig(Home(tmp_path), str(base_model), port=0, trainer_low_priority=False, engine_gpus=("0", "2,3"))
    with serving(create_app(config, TOKEN)) as url:
        server = TrainerServer(url, Home(tmp_path), {}, None)
        until(lambda: health(server)["engines"] == [True, True])
        with server.http() as http:
            assert http.post("/api/policies", json={"name": "agent"}).status_code == 201
        assert {where(server, rollout) for rollout in new(4)} == {"0", "2,3"}
        for name in ("engine-0", "engine-1", "trainer"):
            pid = (tmp_path / "logs" / f"{name}.pid").read_text().split()[0]
            assert b"OPENAI_API_KEY" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert {path.name for path in (tmp_path / "logs").glob("*.log")} == {"engine-0.log", "engine-1.log", "trainer.log"}


@pytest.mark.parametrize("unavailable_reason", ["memory", "disk"])
def test_a_launched_engine_that_does_not_start_at_first_is_started_again(
    tmp_path: Path,
    base_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    unavailable_reason: str,
) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path))
    again, log = tmp_path / "again", tmp_path / "logs" / "engine.log"
    if unavailable_reason == "memory":
        once = f"if [ ! -e {again} ]; then echo CUDA out of memory; touch {again}; exit 1; fi"
        install_stand_in(tmp_path, before=[once])
    else:
        install_stand_in(tmp_path)
        log.mkdir(parents=True)
    config = ServerConfig(Home(tmp_path), str(base_model), port=0, trainer_low_priority=False)
    with serving(create_app(config, TOKEN)) as url:
        server = TrainerServer(url, Home(tmp_path), {}, None)
        if unavailable_reason == "disk":
            assert "engine.log" in until(lambda: health(server)["error"])
            log.rmdir()
        until(lambda: health(server)["ready"])
        assert health(server)["error"] is None
    assert ("CUDA out of memory" if unavailable_reason == "memory" else "Is a directory") in caplog.text


def test_what_is_passed_on_to_vllm_comes_last(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path))
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "art-engine.json").write_text('{"flavour": "cuda", "requirement": "vllm"}')
    flags = ("--tensor-parallel-size", "2", "--data-parallel-size", "4")
    base = ServedModel("base", str(base_model))
    settings = EngineSettings(base=base, home=Home(tmp_path), cpu=False, adapter_slots=4, args=flags)
    line = command(settings, 8000)
    assert line[-4:] == list(flags)
    assert line[line.index("--max-loras") + 1] == "4"
    assert line[line.index("--allowed-media-domains") + 1].endswith(".invalid")
    open_to = command(replace(settings, media_domains=("a.org", "b.org")), 1)
    at = open_to.index("--allowed-media-domains") + 1
    assert open_to[at : at + 2] == ["a.org", "b.org"]
    assert environment(settings, "k", gpus="2,3")["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "CUDA_VISIBLE_DEVICES" not in environment(settings, "k")

    asked = ["--model", str(base_model), "--host", "0.0.0.0", "--gpus", "2,3", "--engine-args", shlex.join(flags)]
    printed = CliRunner().invoke(build(), ["engine", "command", *asked]).stdout
    assert shlex.split(printed)[-4:] == list(flags)
    for word in ('VLLM_API_KEY="${ART_ENGINE_API_KEY:?', "CUDA_VISIBLE_DEVICES=2,3", "--host 0.0.0.0", "--enable-lora",
                 "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "--logprobs-mode processed_logprobs",
                 "--allowed-media-domains none.invalid"):  # fmt: skip
        assert word in printed


async def test_a_single_engine_needs_no_memory_of_rollouts() -> None:
    engine = LettersEngine("base")
    await engine.start()
    pool = Engines([engine])
    for number in range(100):
        with pool.route(f"rollout-{number}", sticky=True) as routed:
            assert routed is engine
    assert not pool._engine_by_key
    await engine.stop()
    with pytest.raises(EngineError, match="no engine is ready"), pool.route("rollout-1", sticky=True):
        pass
