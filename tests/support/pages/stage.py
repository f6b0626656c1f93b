"""What the code of a page finds: a folder with files, a trainer server with a policy, and the names that pages use."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from langsmith.schemas import Example

from art_langgraph import ChatART, Scenario, TrainerClient, TrajectoryStore, gather, rollout, save_scenarios
from tests.support.cli import art
from tests.support.pages.blocks import Block, variables_of, words_of
from tests.support.pages.programs import program
from tests.support.runs.foreign_runs import write
from tests.support.servers.judge_app import endpoint, scores
from tests.support.servers.trainer_server import TOKEN, TrainerServer

AGENT = '''
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART


def build_graph(model):
    async def answer(state: MessagesState):
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


graph = build_graph(ChatART(policy="agent", max_tokens=32))


async def agent(question):
    return (await ChatART(policy="agent", max_tokens=32).ainvoke(question)).text


def reward(trajectory) -> float:
    return float(trajectory.scenario.metadata["answer"] in trajectory.final_text)


def multiply(a: int, b: int) -> int:
    """Multiplies."""
    return a * b
'''
"""What pages call `my_agent`: a graph, a function, a reward."""
ANSWERS = ("4", "That is 12.", "no idea", "42 or 6", "Rome", "elbat", "SELECT name FROM city", "7 8 9")
"""What the engine says, in turn, so that the runs of a scenario differ."""
READ = re.compile(r"(pip|make|langgraph|\. )|art-langgraph (serve|engine install|quickstart)\b")
"""Commands that are not run: they install, or go on until they are stopped. That their options exist is a test of its
own."""
PROGRAM = re.compile(r"python (\w+\.py)\b")
"""A command that starts a file which is a block of the page."""
SERVERS = ("http://127.0.0.1:8400", "https://art.example.com:8400", "http://other:8400")
"""Addresses of servers on the pages. All of them are the same server here."""
SMALL = ((r"\bsteps([= ])\d+", r"steps\g<1>1"), (r"\bn=\d+", "n=2"), (r"--minutes \d+", "--minutes 1"))
"""Trainings of a page are run with a single step of two runs for each scenario."""


class _Endless(list[str]):
    """The small engine's answers: it takes the first one, and there is always another."""

    def __init__(self) -> None:
        super().__init__(ANSWERS[:1])
        self._answers = cycle(ANSWERS)

    def pop(self, _at: Any = 0) -> str:
        return next(self._answers)


@dataclass(slots=True)
class Stage:
    """Runs the blocks of one page, one after another.

    Args:
        folder: The working directory.
        server: The trainer server.
        policy: The policy that pages call `agent`.
        names: The names that Python blocks find and make.
        programs: Files that commands of the page start. Their blocks are written, and run by these commands.
        literal: Texts of the page, and what stands for them here.
        prelude: Variables that earlier lines of the shell have set.
    """

    folder: Path
    server: TrainerServer
    policy: str
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    programs: frozenset[str] = frozenset()
    literal: dict[str, str] = field(default_factory=dict)
    prelude: list[str] = field(default_factory=list)

    async def run(self, block: Block) -> None:
        """Runs a block. Raises what its code raises, or AssertionError for a command that fails."""
        if block.language == "python":
            await self._python(block)
        elif block.language == "console":
            for command in block.commands:
                await self._command(self._here(command, before="[\"' ]"), str(block))
        elif block.language == "json":
            json.loads(block.text)

    async def _python(self, block: Block) -> None:
        text = self._here(block.text)
        if name := re.match(r"# ([\w/]+\.py)\n", text):
            (self.folder / name[1]).parent.mkdir(exist_ok=True)
            (self.folder / name[1]).write_text(text)
            if name[1] in self.programs:
                return
        code = compile("\n" * block.line + text, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if (found := eval(code, self.names)) is not None:
            await found
        if re.search(r"^async def main\(\)", text, re.M):
            await self.names["main"]()

    async def _command(self, command: str, where: str) -> None:
        if READ.match(re.sub(r"^([A-Z_]+=\S+ )+", "", command)):
            return
        if re.fullmatch(r"(export )?([A-Z_]+=(\$\(.*?\)|\S+) ?)+", command):
            self.prelude.append(command)
        elif words := words_of(command):
            typed = f"{TOKEN}\n" if words[0] == "connect" else "y\n"
            with pytest.MonkeyPatch.context() as environment:
                for name, value in variables_of(command).items():
                    environment.setenv(name, value)
                done = await asyncio.to_thread(art, *words, typed=typed)
            assert done.exit_code == 0, f"{where}: {command}\n{done.output}\n{done.exception!r}"
        else:
            if command.startswith("curl "):
                program("curl")
            script = "\n".join([*self.prelude, f"set -e; {command}"])
            child = await asyncio.create_subprocess_exec(
                "bash", "-c", script, cwd=self.folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            said, _ = await child.communicate()
            assert child.returncode == 0, f"{where}: {command}\n{said.decode()}"

    def _here(self, text: str, *, before: str = '"') -> str:
        """The text with this stage's policy, address and ids, and with small numbers. before: what a policy follows."""
        text = re.sub(rf"(?<={before})agent(?=[\"'@\s]|$)", self.policy, text)
        for there, here in self.literal.items():
            text = text.replace(there, here)
        for there, here in SMALL:
            text = re.sub(there, here, text)
        return text


@contextmanager
def _imports() -> Iterator[None]:
    """Modules that a page's folder has are forgotten afterwards."""
    modules, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if name.startswith("my_"):
                del sys.modules[name]


@contextmanager
def judged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A judge at the address of OpenAI: it scores short runs higher. Raises AssertionError where nobody asked it."""
    with endpoint(scores(lambda text: 1 / (1 + len(text)))) as judge:
        monkeypatch.setenv("OPENAI_BASE_URL", judge.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        monkeypatch.setenv("ART_CACHE", str(folder / "cache"))
        yield
        assert judge.requests


@asynccontextmanager
async def stage(
    name: str,
    folder: Path,
    server: TrainerServer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    recorded: bool,
    created: bool,
    programs: Iterable[str] = (),
) -> AsyncIterator[Stage]:
    """Sets a stage for a page.

    Args:
        name: Of the page's policy.
        folder: An empty directory.
        server: Where the policy is made.
        monkeypatch: Sets the environment.
        recorded: Whether there are recorded runs, and a version 1.
        created: Whether the policy is there; a page may make it.
        programs: Files that commands of the page start.
    """
    (folder / ".art-langgraph").symlink_to(server.home.root)
    for variable in ("ART_HOME", "ART_BASE_URL", "ART_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("AGENT_COMMAND", "python my_program.py")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(server.engine, "answers", _Endless())
    play = Stage(folder, server, name, programs=frozenset(programs))
    (folder / "my_agent.py").write_text(AGENT.replace('"agent"', f'"{name}"'))
    (folder / "langgraph.json").write_text(
        json.dumps({"dependencies": ["."], "graphs": {"chat": "./my_agent.py:graph"}})
    )
    questions = [
        Scenario(input=f"What is {a} + {b}?", metadata={"answer": str(a + b)}) for a in (2, 3) for b in range(5)
    ]
    save_scenarios(folder / "train.jsonl", questions[:8])
    save_scenarios(folder / "held_out.jsonl", questions[8:])
    shown = [
        {"messages": [{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": f"{n + 1}."}]}
        for n in range(10)
    ]
    (folder / "demonstrations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in shown))
    _export_of_langfuse(folder)
    _dataset_of_smithtune(folder)
    with _imports():
        async with TrainerClient() as trainer:
            if created or recorded:
                await trainer.create_policy(name)
            agent: dict[str, Any] = {}
            exec(compile((folder / "my_agent.py").read_text(), "my_agent.py", "exec"), agent)
            store = TrajectoryStore()
            play.names |= {
                **{key: agent[key] for key in ("graph", "build_graph", "reward", "agent")},
                "trainer": trainer,
                "model": ChatART(policy=name, max_tokens=32),
                "exact": agent["reward"],
                "scenarios": questions[:8],
                "training": questions[:8],
                "held_out": questions[8:],
                "tools": ["multiply"],
                "store": store,
                "server": server.url,
                "key": TOKEN,
                "my_application": SimpleNamespace(handle=agent["agent"]),
                "Display": lambda run: SimpleNamespace(show=print, close=lambda: None),
            }
            play.literal = {
                **dict.fromkeys(SERVERS, server.url),
                "its-key": TOKEN,
                "/backups": f"{folder}/backups",
                "/srv": f"{folder}/srv",
            }
            if recorded:
                await _record(play, trainer, store)
            try:
                yield play
            finally:
                (folder / ".art-langgraph" / "connection.json").unlink(missing_ok=True)


def _export_of_langfuse(folder: Path) -> None:
    """Three observations of a blob storage export, and a score for each."""
    spans = [
        {
            "project_id": "p",
            "id": f"o{n}",
            "trace_id": f"t{n}",
            "type": "GENERATION",
            "name": "generation",
            "parent_observation_id": "",
            "level": "DEFAULT",
            "provided_model_name": "gpt-4o",
            "metadata": {},
            "start_time": "2026-03-01 12:00:00.000000",
            "end_time": "2026-03-01 12:00:01.000000",
            "input": json.dumps([{"role": "user", "content": f"What is {n} + 3?"}]),
            "output": json.dumps({"role": "assistant", "content": f"It is {n + 3}."}),
        }
        for n in range(3)
    ]
    scores = [
        {
            "id": f"s{n}",
            "trace_id": f"t{n}",
            "name": "helpfulness",
            "value": 1,
            "data_type": "NUMERIC",
            "timestamp": "2026-03-01 12:01:00.000000",
            "source": "ANNOTATION",
        }
        for n in range(3)
    ]
    write(folder / "observations.jsonl.gz", *spans)
    write(folder / "scores.jsonl.gz", *scores)


def _dataset_of_smithtune(folder: Path) -> None:
    """Ten examples of a dataset of LangSmith, as smithtune writes them: a call, its result, an answer."""
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    examples = []
    for n in range(10):
        messages = [
            {"role": "system", "content": "Add."},
            {"role": "human", "content": [{"type": "text", "text": f"{n} + 3?"}]},
            {
                "role": "ai",
                "content": [
                    {"type": "reasoning", "reasoning": "The tool adds."},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_call", "id": f"c{n}", "name": "add", "args": {"a": n, "b": 3}},
                ],
            },
            {"role": "tool", "tool_call_id": f"c{n}", "name": "add", "content": str(n + 3)},
            {"role": "ai", "content": str(n + 3)},
        ]
        bound = [{"message_index": at, "run_id": f"r{n}-{at}", "trace_id": f"t{n}", "tools": [tool]} for at in (2, 4)]
        metadata = {
            "trajectory_format": "messages",
            "conversation_scope": "root",
            "source_scope": "trace",
            "source_scope_id": f"t{n}",
            "source_project_id": "p",
            "smithtune_source": {"schema_version": 1, "assistant_runs": bound},
        }
        examples.append(Example(id=uuid4(), dataset_id=uuid4(), inputs={"messages": messages}, metadata=metadata))
    (folder / "examples.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in examples))


async def _record(play: Stage, trainer: TrainerClient, store: TrajectoryStore) -> None:
    """Runs in the store, one of them on a thread; a version 1; a policy to be deleted."""
    graph, reward, scenarios = (play.names[key] for key in ("graph", "reward", "scenarios"))
    rewards = cycle((1.0, 0.0))
    differ: Callable[[Any], float] = lambda _run: next(rewards)  # noqa: E731
    groups = await gather(graph, scenarios[:1], 4, differ, store=store, temperature=1.0, progress=False)
    await trainer.train_step(play.policy, groups)
    thread = {"configurable": {"thread_id": "thread-7"}}
    await rollout(graph, scenarios[2], reward, store=store, config=thread, temperature=1.0)
    await rollout(graph, scenarios[3], store=store, temperature=1.0)
    await trainer.create_policy(f"{play.policy}-old")
    run, other = (trajectory.id for trajectory in groups[0].trajectories[:2])
    play.literal |= {"RUN_ID": run, "OTHER_RUN": other, "tr-4f2a": run, "agent-old": f"{play.policy}-old"}
