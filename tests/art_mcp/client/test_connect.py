"""Real MCP servers, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import sys
from typing import Any

import psutil
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from art_langgraph import gather, rollout
from art_mcp import CallResult, MCPError, connect
from art_mcp.client.connect import ConnectOptions
from tests.support.mcp.commands import ODD, SERVER
from tests.support.mcp.graphs import calling
from tests.support.patience import PATIENCE
from tests.support.servers.serving import serving
from trainer_server.wire import ConfigError

pytestmark = pytest.mark.slow


async def gone(pid: int) -> None:
    """Waits until a process has ended."""
    for _ in range(round(PATIENCE / 0.05)):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"process {pid} outlived its session")


async def test_tools_keep_their_schemas_and_answer() -> None:
    async with connect(SERVER) as server:
        assert server.name == "tested"
        tools = {tool.name: tool for tool in await server.tools()}
        assert tools["add"].args_schema["properties"]["a"]["type"] == "integer"
        assert await tools["add"].ainvoke({"a": 1, "b": 2}) == "3"


async def test_a_command_may_be_a_string() -> None:
    async with connect(shlex.join(SERVER)) as server:
        assert (await server.call("add", {"a": 1, "b": 2})).text == "3"


async def test_errors_are_results_and_never_crashes() -> None:
    async with connect(SERVER, timeout=3.0) as server:
        assert (await server.call("fail", {})).is_error
        assert (await server.call("missing", {})).is_error
        assert (await server.call("add", {"a": "x"})).is_error
        late = await server.call("hang", {})
        assert late.is_error
        assert "3 s" in late.text
        assert (await server.call("add", {"a": 1, "b": 2})).text == "3"


async def test_a_server_that_crashes_gives_an_error_in_time() -> None:
    async with connect(SERVER, timeout=5.0) as server:
        assert (await server.call("crash", {})).is_error


async def test_many_calls_at_once_share_a_session() -> None:
    async with connect(SERVER) as server:
        results = await asyncio.gather(*(server.call("add", {"a": i, "b": 0}) for i in range(50)))
    assert [result.text for result in results] == [str(i) for i in range(50)]


async def test_the_child_ends_with_the_session() -> None:
    async with connect(ODD) as server:
        pid = int((await server.call("pid", {})).text)
        left = int((await server.call("leave_child", {})).text)
        assert psutil.pid_exists(pid)
    await gone(pid)
    await gone(left)


async def test_a_command_that_is_no_server() -> None:
    with pytest.raises(MCPError):
        async with connect("/does/not/exist"):
            pass
    with pytest.raises(MCPError):
        async with connect([sys.executable, "-c", "pass"], timeout=5):
            pass


async def test_streamable_http_with_headers() -> None:
    from tests.support.mcp.server import server as tested

    app = tested.streamable_http_app()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != b"Bearer 123":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"who are you?"})
        else:
            await app(scope, receive, send)

    with serving(guarded) as url:
        async with connect(f"{url}/mcp", headers={"Authorization": "Bearer 123"}) as server:
            assert (await server.call("add", {"a": 1, "b": 2})).text == "3"
        with pytest.raises(MCPError, match="HTTP 401"):
            async with connect(f"{url}/mcp"):
                pass


async def test_nobody_at_the_url() -> None:
    with pytest.raises(MCPError, match=r"127\.0\.0\.1:9"):
        async with connect("http://127.0.0.1:9/mcp", start_timeout=20):
            pass


@pytest.mark.parametrize(
    ("server", "options"),
    [("https://x/mcp", {"env": {"A": "1"}}), ("python x.py", {"headers": {"A": "1"}}), ("", {}), ("python 'x.py", {})],
)
async def test_options_that_do_not_go_together(server: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        async with connect(server, **options):
            pass


async def test_garbage_on_stdout_harms_no_call() -> None:
    async with connect([*ODD, "garbage"], timeout=PATIENCE) as server:
        assert (server.name, server.version, server.instructions) == ("odd", "0.9", "Handle with care.")
        assert (await server.call("echo", {"text": "fine"})).structured == {"echo": "fine"}


async def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    with pytest.raises(MCPError, match="1 s"):
        async with connect([*ODD, "deaf"], start_timeout=1):
            pass


async def test_a_crash_is_told_with_the_servers_last_words_and_the_next_call_starts_it_again() -> None:
    async with connect(ODD, timeout=PATIENCE) as server:
        assert (await server.call("count", {})).text == "1"
        crashed = await server.call("stop", {})
        assert (crashed.is_error, crashed.failure) == (True, "closed")
        assert "out of coffee" in crashed.text
        assert (await server.call("count", {})).text == "1"


async def test_large_answers_are_cut_and_say_so() -> None:
    async with connect(ODD, max_result=1000) as server:
        big = await server.call("big", {"size": 10_000_000})
        assert len(big.text) < 1200
        cut, left_out = big.text.splitlines()[1:]
        assert cut == "[the last 9,999,000 of 10,000,000 characters were left out]"
        assert left_out == "[the structured result was left out: it has 10,000,011 characters, more than 1,000]"
        assert (big.structured, big.is_error) == (None, False)
        tool = next(tool for tool in await server.tools() if tool.name == "big")
        assert await tool.ainvoke({"size": 10_000_000}) == big.text, "the agent reads it"


def test_structured_content_that_is_too_large_is_not_lost_without_a_word() -> None:
    """Neither where the server gives no text, nor where its text is short."""
    large = {"all": "y" * 100}
    alone = CallResult.of({"content": [], "structuredContent": large}, limit=20)
    assert alone.text.startswith('{"all": "yyyyyyyyyyy\n[the last 91 of 111 characters were left out]\n')
    assert alone.text.endswith("[the structured result was left out: it has 111 characters, more than 20]")
    short = CallResult.of({"content": [{"type": "text", "text": "see"}], "structuredContent": large}, limit=20)
    assert short.text == "see\n[the structured result was left out: it has 111 characters, more than 20]"


async def test_a_changed_tool_list_is_noticed_and_all_pages_are_read() -> None:
    async with connect(ODD) as server:
        assert len(await server.tools()) == 10
        await server.call("grow", {})
        lost = await server.call("echo", {"text": "x"})
        assert lost.is_error
        assert "echo is gone" in lost.text
        assert "fresh" in lost.text
        assert "fresh" in {tool.name for tool in await server.tools()}


async def test_tools_that_change_before_the_server_has_introduced_itself(caplog: pytest.LogCaptureFixture) -> None:
    async with connect([*ODD, "hasty"], timeout=PATIENCE) as server:
        assert (await server.call("count", {})).text == "1"
        assert len(await server.tools()) == 10
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_change_while_tools_are_listed_is_not_lost() -> None:
    async with connect([*ODD, "restless"], timeout=PATIENCE) as server:
        assert len(await server.tools()) == 10
        lost = await server.call("echo", {"text": "x"})
        assert "echo is gone" in lost.text


async def test_a_list_without_end_is_an_error() -> None:
    async with connect([*ODD, "endless"]) as server:
        with pytest.raises(MCPError, match=r"tools/list .* 1,000 pages"):
            await server.tools()


def test_a_url_is_named_without_its_secrets() -> None:
    assert (
        str(ConnectOptions("https://me:secret@example.com:8443/mcp/x?key=secret#secret").target())
        == "https://example.com:8443/mcp/x"
    )


async def test_binary_content_is_kept_as_a_digest() -> None:
    async with connect(ODD) as server:
        found = await rollout(calling(server, ("picture", {}), ("slow_steps", {})), "x")
    picture, steps = found.tool_calls
    digest = hashlib.sha256(b"picture").hexdigest()
    assert picture.content == [{"type": "image", "mimeType": "image/png", "bytes": 7, "sha256": digest}]
    assert picture.result == "[image, image/png, 7 bytes]\na note"
    assert (picture.server, picture.server_version) == ("odd", "0.9")
    assert [one["message"] for one in steps.progress] == ["step 0", "step 1", "step 2"]


async def test_every_rollout_gets_a_session_of_its_own() -> None:
    async with connect(ODD, isolation="session") as server:
        graph = calling(server, ("pid", {}), ("count", {}), ("count", {}))
        groups = await gather(graph, ["a", "b"], n=2, progress=False)
        runs = [run for group in groups for run in group.trajectories]
        assert [run.tool_calls[-1].result for run in runs] == ["2"] * 4
        pids = {int(str(run.tool_calls[0].result)) for run in runs}
        assert len(pids) == 4
        for pid in pids:
            await gone(pid)
        assert (await server.call("count", {})).text == "1"


async def test_a_shared_session_keeps_its_state() -> None:
    async with connect(ODD) as server:
        groups = await gather(calling(server, ("count", {})), ["a"], n=3, progress=False)
    assert {run.tool_calls[0].result for run in groups[0].trajectories} == {"1", "2", "3"}


async def test_a_cancelled_rollout_leaves_no_process() -> None:
    async with connect(ODD, isolation="session") as server:
        seen: list[int] = []

        async def wait(state: MessagesState) -> None:
            seen.append(int((await server.call("pid", {})).text))
            await asyncio.sleep(60)

        graph = StateGraph(MessagesState).add_node("wait", wait).add_edge(START, "wait").compile()
        running = asyncio.create_task(rollout(graph, "x"))
        while not seen:
            await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await gone(seen[0])
        late = await rollout(graph, "x", timeout=5)
        assert str(late.error).startswith("TimeoutError")
        for pid in seen:
            await gone(pid)


async def test_nothing_is_opened_for_a_connection_that_was_left() -> None:
    before = set(psutil.Process().children())
    async with connect(ODD, isolation="session") as server:
        opening = asyncio.create_task(rollout(calling(server, ("pid", {})), "x"))
        await asyncio.sleep(0.05)
    assert (await server.call("pid", {})).failure == "closed"
    late = (await opening).tool_calls[0]
    if late.failure is None:  # it was quicker
        await gone(int(str(late.result)))
    left = set(psutil.Process().children()) - before
    assert [child for child in left if child.status() != psutil.STATUS_ZOMBIE] == []


async def test_a_server_ends_when_its_client_is_killed() -> None:
    """By SIGKILL, which nothing can clean up after."""
    code = (
        "import asyncio, sys\n"
        "from art_mcp import connect\n"
        "async def main():\n"
        "    async with connect(sys.argv[1:]) as server:\n"
        "        print((await server.call('leave_child', {})).text, (await server.call('pid', {})).text, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *ODD, stdout=asyncio.subprocess.PIPE)
    assert client.stdout
    pids = [int(one) for one in (await asyncio.wait_for(client.stdout.readline(), PATIENCE)).split()]
    assert len(pids) == 2
    client.kill()
    await client.wait()
    for pid in pids:
        await gone(pid)


async def test_arguments_of_any_name_reach_the_tool() -> None:
    async with connect(ODD) as server:
        echo = next(tool for tool in await server.tools() if tool.name == "echo")
        given = {"text": "x", "config": 1, "self": 2, "run_manager": 3, "callbacks": 4}
        assert await echo.ainvoke(given) == "x"


async def test_a_call_inside_a_graph_is_recorded_once() -> None:
    async with connect(SERVER) as server:
        tools = await server.tools()

        def call(name: str, arguments: dict[str, int]) -> dict[str, object]:
            return {"name": name, "args": arguments, "id": f"id-{name}"}

        async def ask(state: MessagesState) -> dict[str, list[AIMessage]]:
            calls = [call("add", {"a": 1, "b": 2}), call("fail", {})]
            return {"messages": [AIMessage("", tool_calls=calls)]}

        graph = StateGraph(MessagesState).add_node("ask", ask).add_node("tools", ToolNode(tools))
        graph.add_edge(START, "ask").add_edge("ask", "tools")
        found = await rollout(graph.compile(), "x")
    assert found.error is None
    calls = {one.tool: one for one in found.tool_calls}
    assert len(found.tool_calls) == 2
    assert (calls["add"].server, calls["add"].result, calls["add"].is_error) == ("tested", "3", False)
    assert calls["add"].tool_call_id == "id-add"
    assert calls["add"].node == "tools"
    assert calls["fail"].is_error
    assert found.output["messages"][-1].status == "error"


@pytest.mark.slow
async def test_structured_content_is_checked_against_its_schema_without_waiting_for_a_pattern() -> None:
    async with connect([*ODD, "patterns"], timeout=PATIENCE) as server:
        await server.tools()
        assert (await server.call("echo", {"text": "aaa"})).structured == {"echo": "aaa"}
        wrong = await server.call("echo", {"text": "a" * 60 + "!"})
        assert wrong.is_error
        assert "Invalid structured content returned by tool echo" in wrong.text
        assert "has an output schema but did not return structured content" in (await server.call("pid", {})).text
