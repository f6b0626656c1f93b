"""Asks servers on loopback by clients of every kind, in a process whose environment names a proxy.

`python -m tests.support.proxies.behind_proxy URL KEY MCP_URL` prints as JSON what came of it. The clients of other
packages are made before anything of art_langgraph is imported.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import openai
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import SecretStr

URL, KEY, MCP_URL = sys.argv[1:]
HELLO: Any = {"model": "agent", "messages": [{"role": "user", "content": "say hello"}], "max_tokens": 20}
CHILD = "import urllib.request as r; print(r.urlopen('{}/ready').status)"

PLAIN = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
PLAIN_ASYNC = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
CHAT = ChatOpenAI(model="agent", base_url=f"{URL}/v1", api_key=SecretStr(KEY), max_tokens=20, max_retries=0)

from art_langgraph import ChatART, TrainerClient, Trajectory, rollout  # noqa: E402
from art_langgraph.background import release, reports  # noqa: E402
from art_langgraph.capture.remote.fetch import _poll_server  # noqa: E402
from art_langgraph.capture.remote.outbox import Outbox  # noqa: E402
from art_langgraph.capture.scope import Scope  # noqa: E402
from art_langgraph.cli.server_check import check_address  # noqa: E402
from art_mcp.client.connect import connect  # noqa: E402
from trainer_server.common import Connection  # noqa: E402
from trainer_server.wire import ServerUnreachable  # noqa: E402


def agent(model: ChatOpenAI) -> Any:
    """A graph that asks a model twice: in a thread without an event loop, and in the loop."""

    async def ask(state: MessagesState) -> dict[str, Any]:
        await asyncio.to_thread(model.invoke, state["messages"])
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()


async def program(_text: str) -> str:
    """An agent that asks by OpenAI's clients, and starts another program."""
    answers = [
        (await asyncio.to_thread(PLAIN.chat.completions.create, **HELLO)),
        (await PLAIN_ASYNC.chat.completions.create(**HELLO)),
        (await openai.AsyncOpenAI(max_retries=0).chat.completions.create(**HELLO)),
    ]
    texts = {str(answer.choices[0].message.content) for answer in answers}
    command = [sys.executable, "-c", CHILD.format(URL)]
    child = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    return f"{' '.join(texts)} {child.stdout.strip() or child.stderr[-300:]}"


def record_sent() -> bool:
    """Whether the record of a remote run went to the server, and came home from it."""
    outbox = Outbox(lambda: None)
    server, scope = Connection(URL, KEY), Scope(rollout_id="ro-remote", call="call")
    scope.servers.add((URL, KEY))
    outbox.note_start(scope, "run")
    outbox.flush(20)
    outbox.close(20)
    _, records = asyncio.run(_poll_server(server, "/api/rollouts/ro-remote/records/call", 0.5))
    return records is not None


def said(run: Trajectory) -> str:
    return run.error or run.final_text


async def main() -> dict[str, Any]:
    """What each client was answered."""
    before = dict(os.environ)
    async with TrainerClient(URL, KEY, retry_for=0) as trainer:
        token = (await trainer.token()).scope
    answers = {
        "TrainerClient": token,
        "ChatART": said(await rollout(agent(ChatART(policy="agent", max_tokens=20)), "say hello")),
        "ChatOpenAI": said(await rollout(agent(CHAT), "say hello")),
        "OpenAI": said(await rollout(program, "say hello")),
        "connect": await asyncio.to_thread(check_address, URL),
    }
    async with connect(MCP_URL) as server:
        answers["MCP"] = (await server.call("add", {"a": 1, "b": 2})).text
    async with TrainerClient("http://trainer.example", KEY, retry_for=0) as elsewhere:
        try:
            await elsewhere.token()
        except ServerUnreachable as error:
            answers["elsewhere"] = str(error)
    return {**answers, "unchanged": dict(os.environ) == before}


if __name__ == "__main__":
    os.environ.update(ART_BASE_URL=URL, ART_API_KEY=KEY)
    answers = asyncio.run(main())
    reports.flush()
    release.flush()
    print(json.dumps({**answers, "record": record_sent(), "unsent": reports.unsent()}))
