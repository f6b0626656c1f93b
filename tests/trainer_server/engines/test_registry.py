"""The door for engines: one that is defined outside the packages is named, serves, and its rollouts are trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, rollout
from tests.support.engines import letters
from tests.support.homes.jobs import finish
from tests.support.servers.trainer_server import TOKEN, trainer_server_over
from trainer_server.common import Home
from trainer_server.engines.base import EngineLost, EngineSettings, RequestRefused
from trainer_server.engines.pool import Engines
from trainer_server.engines.registry import ENGINES, engine_factory
from trainer_server.engines.served_model import ServedModel
from trainer_server.wire import ConfigError, EngineError

ENGINE = "tests.support.engines.letters:make"


def test_an_engine_has_a_name_or_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "letters", letters.make)
    settings = EngineSettings(base=ServedModel("base", str(tmp_path)), home=Home(tmp_path), cpu=True)
    for name in ("letters", ENGINE):
        assert [engine.url for engine in engine_factory(name)(settings)] == ["letters"]
    elsewhere = replace(settings, urls=("http://127.0.0.1:1/v1",))
    assert [engine.url for engine in engine_factory("vllm")(elsewhere)] == ["http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sglang", "there is vllm; name another"),
        ("no_such_module:make", "no_such_module cannot be imported"),
        ("tests.support.engines.letters:nothing", "has no function 'nothing'"),
    ],
)
def test_an_engine_that_does_not_exist_is_refused_with_what_helps(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        engine_factory(name)


def test_a_class_that_lacks_a_part_of_the_protocol_is_refused_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Half:
        wanted: ClassVar[dict[str, Path]] = {}

        async def load(self, name: str, path: Path) -> None: ...

    monkeypatch.setitem(ENGINES, "half", lambda settings: [Half()])
    settings = EngineSettings(base=ServedModel("base", str(tmp_path)), home=Home(tmp_path), cpu=True)
    with pytest.raises(ConfigError, match=r"Half has no busy, chat, check, .*wait_ready, which"):
        engine_factory("half")(settings)


@pytest.mark.parametrize("error", [EngineLost("it restarts"), RequestRefused("no such route", status=404)])
async def test_what_an_engine_says_of_a_load_is_not_said_of_the_request_that_waits_for_it(
    tmp_path: Path, error: EngineError
) -> None:
    class Foreign(letters.LettersEngine):
        async def load(self, name: str, path: Path) -> None:
            raise error

    engine = Foreign("base")
    await engine.start()
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(EngineError, match=str(error)) as found:
        await Engines([engine]).load("p@1", tmp_path)
    assert type(found.value) is EngineError
    assert engine.wanted == {}


@pytest.mark.slow
async def test_rollouts_of_an_engine_from_elsewhere_are_trained_on(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trainer_server_over((), tmp_path / "home", base_model, engine=ENGINE) as server, server.http() as http:
        monkeypatch.setenv("ART_BASE_URL", server.url)
        monkeypatch.setenv("ART_API_KEY", TOKEN)
        assert http.post("/api/policies", json={"name": "p"}).status_code == 201
        model = ChatART(policy="p")

        async def answer(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
        runs = [await rollout(graph, {"messages": [("user", "say something")]}) for _ in range(4)]
        assert [run.error for run in runs] == [None] * 4
        trajectories = [
            {"id": f"t{number}", "reward": float(number % 2), "completions": [call.id for call in run.completions]}
            for number, run in enumerate(runs)
        ]
        body = {"groups": [{"scenario_id": "s", "trajectories": trajectories}], "config": {"lr": 1e-2}}
        job = finish(http, http.post("/api/policies/p/steps", json=body))
        assert job["result"]["version"] == 1, job
        assert job["result"]["metrics"]["trajectories"] == 4

        text = http.post("/v1/completions", json={"model": "p", "prompt": [ord("a")], "max_tokens": 9}).json()
        assert http.get(f"/api/completions/{text['id']}").json()["prompt_token_ids"] == [ord("a")]

        spoken = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]}
        job = finish(http, http.post("/api/policies/p/sft", json={"conversations": [spoken]}))
        assert job["result"]["version"] == 2, job
        (engine,) = http.get("/api/engines").json()["engines"]
        assert engine["url"] == "letters"
        assert engine["adapters"] == ["p@0", "p@1", "p@2"]
        assert "request_seconds" not in engine
        (engine,) = http.get("/api/engines", params={"request_seconds": True}).json()["engines"]
        assert engine["request_seconds"] is None
