"""`art-langgraph autopilot` beside a real `langgraph dev`, killed again and again: a worse candidate goes, a better one
takes over, nothing is lost, and nothing is trained twice."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client

from art_langgraph import TrainerClient, Trajectory
from tests.support.patience import PATIENCE
from tests.support.servers.dev_server import BIN, Dev, langgraph_dev
from tests.support.servers.trainer_server import TOKEN, TrainerServer

pytestmark = pytest.mark.slow

GRAPH = """
import os
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

model = ChatOpenAI(model="flown", base_url=os.environ["ART_BASE_URL"] + "/v1", api_key=os.environ["ART_API_KEY"],
                   max_tokens=40)

async def answer(state: MessagesState):
    return {"messages": [await model.ainvoke(state["messages"][:1])]}

graph = (StateGraph(MessagesState).add_node("one", answer).add_node("two", answer)
         .add_edge(START, "one").add_edge("one", "two").compile())
"""
SHARE = 0.4


class Flight:
    """The autopilot's process, which is started again wherever it was killed."""

    def __init__(self, project: Path) -> None:
        (project / "held_out.jsonl").write_text('"say held out"\n')
        settings = {"--policy": "flown", "--train-every": 6, "--gate": "held_out.jsonl", "--canary": f"{SHARE:.0%}"}
        settings |= {"--min-runs": 4, "--poll": 0.1}
        self.command = [
            str(BIN / "art-langgraph"),
            "autopilot",
            "--json",
            *(str(w) for s in settings.items() for w in s),
        ]
        self.project = project
        self.process: subprocess.Popen[str] | None = None
        self.told: list[dict[str, Any]] = []

    def until(self, event: str, *options: str) -> dict[str, Any]:
        """Reads what it does until something has happened, and kills it there."""
        entry: dict[str, Any] = {}
        self.start(*options)
        while entry.get("event") != event:
            entry = self.next()
        self.kill()
        return entry

    def start(self, *options: str) -> None:
        heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore Ctrl-C
        try:
            self.process = subprocess.Popen(
                [*self.command, *options], cwd=self.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        finally:
            signal.signal(signal.SIGINT, heard)

    def next(self) -> dict[str, Any]:
        assert self.process
        assert self.process.stdout
        assert self.process.stderr
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()[-2000:]
        self.told.append(json.loads(line))
        return self.told[-1]

    def kill(self, how: int = signal.SIGKILL) -> str:
        assert self.process
        self.process.send_signal(how)
        _, said = self.process.communicate(timeout=PATIENCE)
        return said

    def prints(self, *options: str) -> str:
        done = subprocess.run([*self.command, *options], cwd=self.project, capture_output=True, text=True, timeout=120)
        return done.stdout + done.stderr


@pytest.fixture
def dev(server: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dev]:
    (tmp_path / "flown.py").write_text(GRAPH)
    graphs = {"flown": "./flown.py:graph"}
    config = {"dependencies": ["."], "graphs": graphs, "http": {"app": "art_langgraph.dev:app"}}
    (tmp_path / "langgraph.json").write_text(json.dumps(config))
    home = {"ART_HOME": str(tmp_path / "home"), "ART_BASE_URL": server.url, "ART_API_KEY": TOKEN}
    for name, value in home.items():
        monkeypatch.setenv(name, value)
    with langgraph_dev(tmp_path) as (url, _):
        yield Dev(url, tmp_path)


async def use(dev: Dev, times: int, likes: Callable[[int, Trajectory], bool], *, ask: str = "who") -> list[Trajectory]:
    """People use the graph, and say how they liked it. `who` asks for the weights that answer."""
    before = {run.id for run in dev.store}
    client = get_client(url=dev.url)
    questions = [{"messages": [{"role": "user", "content": ask.format(number)}]} for number in range(times)]
    await asyncio.gather(*(client.runs.wait(None, "flown", input=question) for question in questions))
    await dev.written()
    runs = [run for run in dev.store if run.id not in before]
    assert len(runs) == times
    assert all(len(run.completions) == 2 and len(run.versions["flown"]) == 1 for run in runs), "it keeps its version"
    for number, run in enumerate(runs):
        dev.store.score(run.id, float(likes(number, run)))
    return runs


def words(run: Trajectory) -> str:
    return run.final_text


async def test_candidates_are_trained_tried_and_decided_while_the_process_is_killed(dev: Dev) -> None:
    async with TrainerClient() as trainer:
        await trainer.create_policy("flown")
        flight = Flight(dev.project)
        assert "gate's scenarios need a graph" in flight.until("started")["reason"]
        await use(dev, 6, lambda number, _: number % 2 == 0, ask="say {}")
        flight.until("training")
        paused = flight.until("paused")  # the small engine has other log-probs than the trainer, which is an alarm
        assert paused["numbers"]["cause"] == "sampler_gap"
        assert "is paused: sampler_gap" in flight.prints()
        flight.until("gate", "--resume")
        known = words((await use(dev, 1, lambda *_: True))[0])
        flight.until("canary")

        tried = await use(dev, 10, lambda _, run: words(run) == known)  # while it is dead: only the old words are liked
        flight.start()
        tried += await _until_decided(flight, dev, lambda _, run: words(run) == known)
        away = flight.told[-1]
        assert (away["event"], away["version"]) == ("rolled_back", 1)
        assert "it is worse" in away["reason"]
        _check_share(tried, 1)
        assert (await trainer.policy("flown")).served == 0

        while flight.told[-1]["event"] != "canary":  # of the next candidate, which it makes of the same runs
            flight.next()
        flight.kill()
        before = tried[-4:]  # the last of them may have begun after the decision, in the trial of the next candidate
        tried = await use(dev, 10, lambda _, run: words(run) != known)  # the newest words are liked
        _check_share(before + tried, 2, least=0)  # later ones may begin after the promotion, which makes all of them 2
        flight.start()
        tried += await _until_decided(flight, dev, lambda _, run: words(run) != known)
        told = flight.kill(signal.SIGINT)
        assert (flight.told[-1]["event"], flight.told[-1]["version"]) == ("promoted", 2)
        assert flight.process
        assert (flight.process.returncode, "the same command goes on" in told) == (130, True)
        policy = await trainer.policy("flown")
        assert (policy.promoted, policy.promotions) == (2, 2)
        if policy.candidate is not None:  # the process had begun to try the next one
            await trainer.end_candidate("flown")
        assert {run.versions["flown"][0] for run in await use(dev, 3, lambda *_: True)} == {2}

        history = [json.loads(line) for line in flight.prints("--log").splitlines()]
        events = [entry["event"] for entry in history][:13]
        made = ["training", "trained", "gate", "canary"]
        assert events == [
            *("started", "training", "trained", "paused", "resumed", "gate", "canary", "rolled_back"),
            *(*made, "promoted"),
        ]
        assert history[: len(flight.told)] == flight.told, "each line was told once, whoever was killed"
        versions = await trainer.versions("flown")
        assert [one.made_from for one in versions[:3]] == [None, 0, 0]
    with closing(sqlite3.connect(dev.store.path)) as db:
        twice = "SELECT trajectory FROM steps WHERE version IS NOT NULL GROUP BY trajectory HAVING count(*) > 1"
        assert db.execute(twice).fetchall() == []


async def _until_decided(flight: Flight, dev: Dev, likes: Callable[[int, Trajectory], bool]) -> list[Trajectory]:
    """People go on until the running process has decided."""
    deadline, tried = time.monotonic() + PATIENCE, list[Trajectory]()
    told = asyncio.create_task(asyncio.to_thread(flight.next))
    try:
        while not told.done():
            assert time.monotonic() < deadline, flight.prints("--status")
            tried += await use(dev, 4, likes)
            await asyncio.wait({told}, timeout=0.5)
    except BaseException:
        flight.kill()
        raise
    await told
    return tried


def _check_share(tried: list[Trajectory], candidate: int, least: int = 4) -> None:
    mine = sum(run.versions["flown"] == [candidate] for run in tried)
    assert least <= mine <= SHARE * len(tried)
