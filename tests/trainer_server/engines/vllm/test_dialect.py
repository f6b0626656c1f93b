"""vLLM's HTTP: what its answers and its silence become for the rest of the server."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import resource
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from testbed.engine_app import make_app
from tests.support.engines.experts import as_vllm_sends
from tests.support.patience import PATIENCE
from tests.support.servers.serving import serving
from trainer_server.common.jsonl import explain
from trainer_server.engines.base import (
    AdapterLost,
    AdapterRefused,
    BatchesChunks,
    EngineLost,
    MalformedAnswer,
    RequestRefused,
)
from trainer_server.engines.vllm import replies
from trainer_server.engines.vllm.command import free_port
from trainer_server.engines.vllm.dialect import Health, VLLMClient
from trainer_server.wire import EngineError


@pytest.fixture
async def engine() -> AsyncIterator[tuple[VLLMClient, dict[str, Any]]]:
    app = make_app()
    with serving(app) as url:
        client = VLLMClient(url, None, base="base", cpu=True)
        yield client, app.state.engine
        await client.close()


def question(text: str, model: str = "base", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 20, **more}


async def test_an_answer_whole_and_in_chunks(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, _ = engine
    async with client.chat(question("say hi")) as reply:
        (choice,) = (await reply.whole())["choices"]
    assert choice["token_ids"] == [ord("h"), ord("i")]
    async with client.chat(question("say hi", stream=True)) as reply:
        chunks = [chunk async for chunk in reply.chunks()]
    assert chunks[0]["prompt_token_ids"]
    assert "".join(part["delta"].get("content") or "" for chunk in chunks for part in chunk["choices"]) == "hi"


async def test_a_text_completion_has_the_form_of_a_chat_completion(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, state = engine
    asked = {"model": "base", "prompt": [ord(char) for char in "say hi"], "logprobs": True, "top_logprobs": 1}
    async with client.complete(asked) as reply:
        body = await reply.whole()
    (choice,) = body["choices"]
    assert (body["prompt_token_ids"], choice["token_ids"]) == (asked["prompt"], [ord("h"), ord("i")])
    assert choice["message"] == {"role": "assistant", "content": "hi"}
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["h", "i"]
    assert (state["requests"][-1]["logprobs"], "top_logprobs" in state["requests"][-1]) == (1, False)
    async with client.complete({**asked, "stream": True}) as reply:
        chunks = [chunk async for chunk in reply.chunks()]
    assert chunks[0]["prompt_token_ids"] == asked["prompt"]
    assert "".join(part["delta"]["content"] for chunk in chunks for part in chunk["choices"]) == "hi"
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    with pytest.raises(AdapterLost):
        async with client.complete({**asked, "model": "agent@1"}):
            pass


async def test_a_chunk_ends_at_a_line_feed_and_nowhere_else(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, _ = engine
    async with client.chat(question("say a\u2028b\x85c\x1cd", stream=True)) as reply:
        chunks = [chunk async for chunk in reply.chunks()]
    said = "".join(part["delta"].get("content") or "" for chunk in chunks for part in chunk["choices"])
    assert said == "a\u2028b\x85c\x1cd"


async def test_seconds_of_requests_are_sums_over_all_ranks_of_an_engine() -> None:
    text = """# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_bucket{engine="0",le="0.3",model_name="base"} 4.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="base"} 1.5
vllm:request_prefill_time_seconds_sum{engine="1",model_name="base"} 0.25
vllm:request_decode_time_seconds_sum{engine="0",model_name="my base"} 1e1
vllm:request_queue_time_seconds_sum{engine="0",model_name="base"} 0.0
"""
    texts = [text, "art_chats 1.0"]
    with serving(Starlette(routes=[Route("/metrics", lambda request: Response(texts.pop(0)))])) as url:
        client = VLLMClient(url, None, base="base", cpu=True)
        assert await client.request_seconds() == {"prefill": 1.75, "decode": 10.0, "queue": 0.0}
        assert await client.request_seconds() is None
        await client.close()


async def test_no_seed_reaches_a_vllm_on_cpus(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, state = engine
    for cpu in (True, False):
        client._cpu = cpu
        async with client.chat(question("say hi", seed=7)) as reply:
            await reply.whole()
        assert ("seed" in state["requests"][-1]) is not cpu


async def test_many_streams_have_events_of_several_tokens(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, state = engine

    async def interval(**more: Any) -> int | None:
        async with client.chat(question("say hi", **more)):
            pass
        asked = state["requests"][-1].get("stream_interval")
        assert asked is None or type(asked) is int
        return asked

    assert await interval(stream=True) == 1
    async with AsyncExitStack() as stack:
        for more, expected in ((7, 1), (1, 2), (7, 2), (1, 3), (112, 16), (8, 16)):
            for _ in range(more):
                await stack.enter_async_context(client.chat(question("say hi", stream=True)))
            assert await interval(stream=True) == expected
        assert await interval() is None
    assert await interval(stream=True) == 1


async def test_leaving_early_aborts_the_generation(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, state = engine
    async with client.chat(question("slow", stream=True)) as reply:
        await anext(reply.chunks())
    async with asyncio.timeout(PATIENCE):
        while not state["aborted"]:
            await asyncio.sleep(0.02)


async def test_refusals_are_told_apart(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, _ = engine
    with pytest.raises(AdapterLost, match="does not hold p@3"):
        async with client.chat(question("say hi", "p@3")):
            pass
    with pytest.raises(RequestRefused) as refused:
        async with client.chat(question("x" * 3_000)):
            pass
    assert (refused.value.status, refused.value.too_long) == (400, True)
    with pytest.raises(RequestRefused, match="the template says no"):
        await client.render({"messages": [{"role": "user", "content": "unrenderable"}]}, generation=True)


async def test_a_thought_is_rendered_under_either_name(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    """vLLM's chat requests know both fields, its /tokenize one of them."""
    client, state = engine
    asked = {"role": "user", "content": "hi"}
    for field in ("reasoning", "reasoning_content"):
        answer = {"role": "assistant", "content": "ho", field: "they greet"}
        await client.render({"messages": [asked, answer]}, generation=False)
        assert state["tokenized"][-1]["messages"] == [
            asked, {"role": "assistant", "content": "ho", "reasoning": "they greet"}
        ]  # fmt: skip


async def test_a_prompt_in_harmony_is_that_of_a_chat_request() -> None:
    """vLLM's /tokenize renders by the chat template, and its chat requests for gpt-oss do not."""
    app = make_app()
    with serving(app) as url:
        client = VLLMClient(url, None, base="base", cpu=True, harmony=True)
        prompt = await client.render({"messages": [{"role": "user", "content": "say hi"}]}, generation=True)
        await client.close()
    assert prompt == [ord(letter) for letter in "say hi"]
    assert app.state.engine["tokenized"] == []
    assert app.state.engine["requests"][-1]["max_tokens"] == 1


async def test_an_adapter_that_is_not_there_is_refused_and_a_start_is_waited_for(
    engine: tuple[VLLMClient, dict[str, Any]], tmp_path: Path
) -> None:
    client, state = engine
    with pytest.raises(AdapterRefused, match="p@1"):
        await client.load("p@1", tmp_path)
    state["unloadable"] = 1
    with pytest.raises(EngineError, match="answered 503") as starting:
        await client.load("p@1", tmp_path)
    assert not isinstance(starting.value, AdapterRefused)


@pytest.mark.parametrize("same", [True, False])
async def test_an_engine_that_serves_another_commit_is_refused(same: bool) -> None:
    async def models(_request: Request) -> Response:
        return JSONResponse({"data": [{"id": "lab/open", "root": f"/hub/models--lab--open/snapshots/{'a' * 40}"}]})

    async def load(_request: Request) -> Response:
        return Response(status_code=400)

    routes = [Route("/v1/models", models), Route("/v1/load_lora_adapter", load, methods=["POST"])]
    with serving(Starlette(routes=routes)) as url:
        client = VLLMClient(url, None, base="lab/open", cpu=True, revision=("a" if same else "b") * 40)
        if same:
            await client.check(sleeps=False)
        else:
            with pytest.raises(EngineError, match=r"serves commit a{40} of .* trains commit b{40}"):
                await client.check(sleeps=False)
        await client.close()


async def test_silence_says_whether_the_request_arrived(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, _ = engine
    with pytest.raises(EngineLost) as broken:
        async with client.chat(question("die", stream=True)) as reply:
            [chunk async for chunk in reply.chunks()]
    assert broken.value.reached
    nobody = VLLMClient(f"http://127.0.0.1:{free_port()}", None, base="base", cpu=True)
    assert not await nobody.healthy()
    with pytest.raises(EngineLost) as away:
        async with nobody.chat(question("say hi")):
            pass
    assert not away.value.reached
    await nobody.close()


@contextmanager
def no_file_left() -> Iterator[None]:
    """This process can open no file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_process_without_files_does_not_take_the_engine_for_dead(
    engine: tuple[VLLMClient, dict[str, Any]],
) -> None:
    client, _ = engine
    with no_file_left():
        health = await client.health()
        with pytest.raises(EngineError, match="ulimit -n") as failed:
            async with client.chat(question("say hi")):
                pass
    assert health == Health.silent
    assert not isinstance(failed.value, EngineLost)
    assert await client.health() == Health.alive


async def test_an_engine_that_is_slow_to_say_how_it_is_is_not_away(
    engine: tuple[VLLMClient, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, state = engine
    monkeypatch.setattr("trainer_server.engines.vllm.dialect._HEALTH_TIMEOUT", 0.05)
    state["deaf"] = True
    assert await client.health() == Health.silent
    nobody = VLLMClient(f"http://127.0.0.1:{free_port()}", None, base="base", cpu=True)
    assert await nobody.health() == Health.away
    await nobody.close()


EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop", "token_ids": [1]}]}\n\n'
ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "a body": (b"Content-Type: application/json", b"a" * 2**20),
    "a line": (b"Content-Type: text/event-stream", b"data: a" * 2**18),
    "lines without an event": (b"Content-Type: text/event-stream", b": comment\n" * 2**16),
    "events after the end": (b"Content-Type: text/event-stream", EVENT * 2**13),
    "a refusal": (b"Content-Type: application/json", b"a" * 2**20),
}
"""What an engine, or something in its place, sends for ever: a header, and the part that comes again and again."""


@asynccontextmanager
async def sending(head: bytes, body: bytes, again: bytes = b"") -> AsyncIterator[tuple[VLLMClient, list[int]]]:
    """A client of an engine that answers with a head and a body, and then with `again` until the client leaves; and the
    sizes of what it sent."""
    sent: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            writer.write(head + b"\r\n\r\n" + body)
            while again and sum(sent) < 2**28:
                writer.write(again)
                await writer.drain()
                sent.append(len(again))
        except ConnectionError:
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = VLLMClient(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", None, base="base", cpu=True)
    yield client, sent
    await client.close()
    listener.close()
    await asyncio.sleep(0.05)  # so that its connections end


@pytest.mark.parametrize("what", ENDLESS)
async def test_what_never_ends_is_read_up_to_a_limit(what: str) -> None:
    header, part = ENDLESS[what]
    status = b"400 Bad Request" if what == "a refusal" else b"200 OK"
    async with sending(b"HTTP/1.1 " + status + b"\r\n" + header, b"", part) as (client, sent):

        async def read() -> None:
            async with client.chat(question("say hi", stream=True, max_tokens=5)) as reply:
                async for _ in reply.chunks():
                    pass

        with pytest.raises(MalformedAnswer, match=r"has more than 16 MiB"):
            await (client.adapters() if what == "a body" else read())
    assert sum(sent) < 2**26


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "gzip, gzip", "br", "zstd"])
async def test_a_compressed_answer_is_refused_before_it_is_read(encoding: str) -> None:
    """Half a MiB becomes hundreds."""
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Type: application/json".encode()
    async with sending(head, gzip.compress(b'{"data": [' + b"1," * 2**20)) as (client, _):
        with pytest.raises(MalformedAnswer, match=f"compressed \\({encoding}\\) though `Accept-Encoding: identity`"):
            await client.adapters()
        with pytest.raises(MalformedAnswer, match="compressed"):
            async with client.chat(question("say hi")):
                pass
        assert await client.health() == Health.away


async def test_an_engine_is_asked_not_to_compress() -> None:
    heads = list[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = VLLMClient(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", None, base="base", cpu=True)
    assert await client.healthy()
    assert b"accept-encoding: identity\r\n" in heads[0].lower()
    await client.close()
    listener.close()


@pytest.mark.parametrize(
    "answer",
    [
        b'{"data": [' + b"1," * 200_000 + b"1]}",
        b'{"data": [{"id": "a", "max_model_len": "' + b"a" * 2**20 + b'"}]}',
        b"[" * 200_000,
    ],
    ids=["errors", "a value", "depth"],
)
async def test_a_wrong_answer_is_described_by_its_first_error(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error takes a kilobyte, and 16 MiB have millions of wrong values."""
    counts = list[int]()
    monkeypatch.setattr(replies, "explain", lambda error: (counts.append(error.error_count()), explain(error))[1])
    async with sending(b"HTTP/1.1 200 OK", answer) as (client, _):
        with pytest.raises(EngineError, match="no list of models") as wrong:
            await client.adapters()
    assert len(str(wrong.value)) < 1000
    assert max(counts, default=1) == 1


@pytest.mark.parametrize("entries", [{str(n): "a" for n in range(100_000)}, {"a" * 2**20: "b"}], ids=["many", "long"])
def test_alternatives_of_a_token_are_few(entries: dict[str, str]) -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [0.0], "top_logprobs": [entries]}
    with pytest.raises(MalformedAnswer) as wrong:
        replies.read(json.dumps({"choices": [{"index": 0, "text": "a", "logprobs": logprobs}]}), replies.TextAnswer)
    assert len(str(wrong.value)) < 5000


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "in chunks"])
async def test_values_of_an_answer_are_counted_before_it_is_read(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each empty list takes twenty times its bytes."""
    for module in (json, orjson):
        monkeypatch.setattr(module, "loads", lambda *_, **__: pytest.fail("it was read"))
    answer = (b"data: " if stream else b"") + b'{"choices": [], "more": [' + b"[]," * 2**21 + b"[]]}\n\n"
    async with sending(b"HTTP/1.1 200 OK", answer) as (client, _):
        with pytest.raises(MalformedAnswer, match=r"more than 2,09\d,\d{3} values"):
            async with client.chat(question("say hi", stream=stream)) as reply:
                await (anext(reply.chunks()) if stream else reply.whole())
        with pytest.raises(EngineError, match="no list of models"):
            await client.adapters()
    async with sending(b"HTTP/1.1 400 Bad Request", answer) as (client, _):
        with pytest.raises(RequestRefused):
            async with client.chat(question("say hi")):
                pass


async def test_large_answers_are_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[int]()
    parsed = replies.parse_json

    def parse(raw: bytes | str, *bounds: int) -> Any:
        if (b'"more"' if isinstance(raw, bytes) else '"more"') in raw:  # a server beside this test reads answers too
            threads.append(threading.get_ident())
        return parsed(raw, *bounds)

    monkeypatch.setattr(replies, "parse_json", parse)
    for size, here in ((10, True), (2**17, False)):
        chunk = json.dumps({"choices": [], "more": "a" * size}).encode()
        whole = sending(b"HTTP/1.1 200 OK", chunk)
        async with whole as (client, _), client.chat(question("say hi")) as reply:
            await reply.whole()
        streamed = sending(b"HTTP/1.1 200 OK", b"data: " + chunk + b"\n\n")
        async with streamed as (client, _), client.chat(question("say hi", stream=True)) as reply:
            assert len([part async for part in reply.chunks()]) == 1
        assert {thread == threading.get_ident() for thread in threads} == {here}
        threads.clear()


async def test_an_answer_is_in_utf_8() -> None:
    for encoding in ("utf-16", "utf-16-le", "utf-8-sig"):
        async with sending(b"HTTP/1.1 200 OK", '{"choices": []}'.encode(encoding)) as (client, _):
            with pytest.raises(EngineLost, match="answered no JSON"):
                async with client.chat(question("say hi")) as reply:
                    await reply.whole()


async def test_the_message_of_a_refusal_is_passed_on_up_to_a_limit() -> None:
    for body in (json.dumps({"message": "too long: " + "a" * 2**20}).encode(), b"[" * 200_000):
        async with sending(b"HTTP/1.1 400 Bad Request", body) as (client, _):
            with pytest.raises(RequestRefused) as refusal:
                async with client.chat(question("say hi")):
                    pass
        assert len(str(refusal.value)) < 5000


@pytest.mark.parametrize(("tokens", "top"), [(1000, 0), (20_000, 0), (2000, 20)])
async def test_the_limit_of_an_answer_grows_with_what_was_asked_for(tokens: int, top: int) -> None:
    """A token of 1,000 bytes, and as many of each alternative, still fit."""
    entry = {"token": "a" * 1000, "logprob": -0.5}
    content = [{**entry, "top_logprobs": [entry] * top}] * tokens
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "a"},
        "finish_reason": "stop",
        "token_ids": [1] * tokens,
        "logprobs": {"content": content},
    }
    async with sending(b"HTTP/1.1 200 OK", json.dumps({"choices": [choice]}).encode()) as (client, _):
        asked = question("say hi", max_tokens=tokens, n=1, logprobs=True, top_logprobs=top)
        async with client.chat(asked) as reply:
            assert len((await reply.whole())["choices"][0]["token_ids"]) == tokens


async def test_the_experts_of_a_long_conversation_fit_into_a_whole_answer() -> None:
    experts = as_vllm_sends(np.zeros((40_000, 48, 8), np.uint8))  # 20 MiB of text
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "token_ids": [1], "routed_experts": experts}
    body = json.dumps({"choices": [{**choice, "finish_reason": "stop"}]}).encode()
    async with (
        sending(b"HTTP/1.1 200 OK", body) as (client, _),
        client.chat(question("say hi", max_tokens=5, n=1)) as reply,
    ):
        assert (await reply.whole())["choices"][0]["routed_experts"] == experts


def _token_chunk() -> dict[str, Any]:
    entry = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    delta = {"content": "a", "reasoning": None}
    choice = {"index": 0, "delta": delta, "logprobs": {"content": [entry]}, "finish_reason": None, "token_ids": [97]}
    return {"id": "chatcmpl-engine", "choices": [choice]}


VALUES = (None, True, -1, 2**31, 0.5, 1, "a", [], [1], [-1], [2**31], [True], ["a"], {}, {"content": 1}, [{}], [None])
FIELDS = (
    (), ("choices",), ("choices", 0), ("usage",), ("prompt_token_ids",), *(
        ("choices", 0, *rest) for rest in (
            ("index",), ("delta",), ("delta", "content"), ("delta", "reasoning"), ("delta", "reasoning_content"),
            ("delta", "tool_calls"), ("finish_reason",), ("stop_reason",), ("token_ids",), ("logprobs",),
            ("logprobs", "content"), ("logprobs", "content", 0), ("logprobs", "content", 0, "token"),
            ("logprobs", "content", 0, "logprob"), ("logprobs", "content", 0, "top_logprobs"),
        )
    ),
)  # fmt: skip


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: ".".join(map(str, field)) or "all")
async def test_every_chunk_is_held_against_the_form(field: tuple[Any, ...]) -> None:
    """Also a chunk that is so plain that pydantic does not look at it."""
    for value in VALUES:
        whole = {"chunk": _token_chunk()}
        at: Any = whole
        for name in ("chunk", *field)[:-1]:
            at = at[name]
        at[("chunk", *field)[-1]] = value
        chunk = whole["chunk"]
        coming = sending(b"HTTP/1.1 200 OK", b"data: " + json.dumps(chunk).encode() + b"\n\n")
        async with coming as (client, _), client.chat(question("say hi", stream=True)) as reply:
            try:
                replies.ChatChunk.model_validate(chunk)
            except ValidationError:
                with pytest.raises(MalformedAnswer):
                    await anext(reply.chunks())
            else:
                assert await anext(reply.chunks()) == chunk


async def test_chunks_that_come_together_are_given_together_also_before_a_fault() -> None:
    good = b"data: " + json.dumps(_token_chunk()).encode() + b"\n\n"
    coming = sending(b"HTTP/1.1 200 OK", good * 2 + b'data: {"choices": 1}\n\n' + good)
    async with coming as (client, _), client.chat(question("say hi", stream=True)) as reply:
        assert isinstance(reply, BatchesChunks)
        batches = reply.batches()
        assert await anext(batches) == [_token_chunk()] * 2
        with pytest.raises(MalformedAnswer):
            await anext(batches)
