"""A small engine that answers chat and text completions with exact tokens, as vLLM does: for the lane without vLLM.

A token is a character of the text, but two newlines in a row are one. Its chat template puts END after what the
assistant said, and drops `(hint) …` messages once they are answered. It takes `kv_transfer_params.prompt_token_ids` in
place of the rendered prompt, unless `state["splices"]` is false (`"garbled"`: it reports another prompt).

What it answers follows from the last message: `think THOUGHT|TEXT` thinks first, `call NAME {json}` makes a tool call,
`calls [[NAME, {json}], …]` several, `say TEXT` says TEXT, `who` names the weights of the adapter that answers, `where`
the engine, `slow` streams slowly, `die` breaks the connection, `no tokens` leaves the token ids out, `gap TEXT` says
TEXT and leaves the second chunk of a stream out; `after SECONDS …` does the rest later, `when released …` does it once
`state["released"]`, `paced SECONDS …` does the rest, a token every SECONDS in a stream, `turn …` does the rest and
samples END; anything else is echoed. A forced tool is called with what would have been said. More than 2,000
characters are over the context. Tool calls in the messages need an id, a type and arguments that are a text, and strict
tools a schema that can be a grammar. While `state["late"]`, streams are refused by their first event. While a test
leaves texts in `state["answers"]`, these are said instead (of `call …`, done), to prompts of any length.
`state["scripts"]` has such answers for
conversations: a list for each text by which a conversation is known, however a framework wraps it. After the list it
says `done`. Adapters whose names are in `state["refused"]` are not loaded, nor are those that are no whole safetensors
files. While `state["deaf"]`, health checks are not answered. Asked for `prompt_logprobs`, it finds the characters of
`state["likes"]` a nat likelier than others. With `state["shift"]` it has another tokenizer. While
`state["raw"]` is a text, that is the body of every answer.

`cut TEXT` says TEXT, and that the limit of tokens cut it.

With `sleeps` it can be told to rest, and answers nothing while it does.

`state["missing"]` is what its plugins have left out; None: it runs without plugins. `state["max_num_seqs"]` is how many
requests they say that it computes at once.

`python -m testbed.engine_app PORT` runs it as a process, to be killed; `GET /state` and `POST /state` reach
its state.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from safetensors import SafetensorError
from safetensors.numpy import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trainer_server.common.jsonl import to_json
from trainer_server.engines.vllm.dialect import TOOL_PROBE
from trainer_server.process import faults

CONTEXT = 2_000
END = "\x03"
PARAGRAPH = 256
UNSEEN = "unseen"
"""A function whose calls the chat template leaves out."""
UNIFORM = -math.log(300)
"""Log-probability of every token: about that of the tiny base model, which knows nothing yet."""


def make_app(
    name: str = "engine",
    base: str = "base",
    key: str = "",
    lora: bool = True,
    sleeps: bool = False,
    tools: bool = True,
) -> Starlette:
    """name: what it answers to `where`. lora: whether adapters can be loaded at run time. sleeps: see above. tools:
    whether it has a parser of tool calls."""
    state: dict[str, Any] = {
        "loaded": {}, "most_loaded": 0, "loads": 0, "load_seconds": 0.0, "requests": [], "tokenized": [], "aborted": 0,
        "blind": False, "unready": 0, "answers": [], "scripts": {}, "refused": [], "unloadable": 0,
        "splices": True, "likes": "", "shift": 0,
        "deaf": False, "looks": 0, "asleep": False, "naps": 0, "disturbed": 0, "sleepless": 0, "under_way": 0,
        "released": False, "raw": None, "traceparent": None, "missing": {}, "late": False,
        "max_num_seqs": None,
    }  # fmt: skip

    async def chat(request: Request) -> Response:
        state["disturbed"] += state["asleep"]
        state["under_way"] += 1
        try:
            return await answer(request)
        finally:
            state["under_way"] -= 1

    def refusal(body: dict[str, Any], message: str) -> Response:
        error = {"error": {"message": message, "type": "BadRequestError", "code": 400}}
        if state["late"] and body.get("stream"):
            return StreamingResponse(_events([error]), media_type="text/event-stream")
        return JSONResponse(error, 400)

    async def sleep(_request: Request) -> Response:
        if state["sleepless"]:
            return JSONResponse({"error": "not today"}, 500)
        state["disturbed"] += state["under_way"]
        state["naps"] += 1
        state["asleep"] = True
        return JSONResponse({"status": "sleeping"})

    async def wake_up(_request: Request) -> Response:
        state["asleep"] = False
        return JSONResponse({"status": "awake"})

    async def plugins(_request: Request) -> Response:
        if state["missing"] is None:
            return Response(status_code=404)
        return JSONResponse({"missing": state["missing"], "max_num_seqs": state["max_num_seqs"]})

    async def is_sleeping(_request: Request) -> Response:
        return JSONResponse({"is_sleeping": state["asleep"]})

    async def answer(request: Request) -> Response:
        if key and request.headers.get("Authorization") != f"Bearer {key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        body = await request.json()
        if not tools and body.get("tools") and body.get("tool_choice", "auto") == "auto":
            message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            return JSONResponse({"error": {"message": message, "type": "BadRequestError", "code": 400}}, 400)
        if body.items() >= TOOL_PROBE.items():
            return JSONResponse({"choices": []})
        state["requests"].append(body)
        state["traceparent"] = request.headers.get("traceparent")
        if state["raw"] is not None:
            return Response(state["raw"], media_type="text/event-stream" if body.get("stream") else "application/json")
        if body["model"] != base and body["model"] not in state["loaded"]:
            return JSONResponse({"error": {"message": f"model {body['model']} does not exist", "code": 404}}, 404)
        if problem := _invalid_call(body["messages"]):
            return JSONResponse({"error": {"message": problem, "type": "Bad Request", "code": 400}}, 400)
        if any(map(_no_grammar, body.get("tools") or ())):
            return refusal(body, "Invalid grammar specification.")
        prompt = _render(body["messages"])
        scripted = state["answers"].pop(0) if state["answers"] else None
        if scripted is not None and not scripted.startswith("call "):
            scripted = f"say {scripted}"
        if scripted:
            prompt = ""
        following = _next_of_script(body["messages"], state["scripts"])
        if following:
            scripted = following
            prompt = prompt.encode("latin-1", "replace").decode("latin-1")  # the tiny model has no other characters
        given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids") if state["splices"] else None
        length, context = len(given or prompt), math.inf if following else CONTEXT
        limit = body.get("max_tokens") or CONTEXT - length
        if length + limit > context or limit < 1:
            return refusal(body, f"This model's maximum context length is {CONTEXT} tokens.")
        said = scripted or str(body["messages"][-1].get("content") or "")
        if said.startswith("after "):
            _, seconds, said = said.split(" ", 2)
            if await _disconnected(request, float(seconds)):
                state["aborted"] += 1
                return Response()
        if said.startswith("when released "):
            said = said.removeprefix("when released ")
            while not state["released"]:
                await asyncio.sleep(0.01)
        pace = 0.0
        if said.startswith("paced "):
            _, seconds, said = said.split(" ", 2)
            pace = float(seconds)
        said = {"who": f"say {weights(state['loaded'].get(body['model']))}", "where": f"say {name}"}.get(said, said)
        said, ends = said.removeprefix("turn "), END * said.startswith("turn ")
        text, calls = _answer(said, body)
        if following:  # calls of several turns must not have the same id
            calls = [{**call, "id": f"{call['id']}-{len(state['requests'])}"} for call in calls]
        tokens = [ord(char) for char in text + ends][:limit]
        choices = [_choice(i, text[:limit], calls, tokens) for i in range(body.get("n") or 1)]
        if said.startswith("think "):
            thought, answer = said.removeprefix("think ").split("|")
            for choice in choices:
                choice["message"] |= {"reasoning": thought, "content": answer}
        prompt_ids = given or _tokens(prompt) or [0]
        if given and state["splices"] == "garbled":
            prompt_ids = prompt_ids[1:]
        head = {"id": "chatcmpl-engine", "object": "chat.completion", "created": 1, "model": body["model"]}
        for choice in choices if said.startswith("cut ") else ():
            choice["finish_reason"] = "length"
        if said == "no tokens":
            for choice in choices:
                choice["token_ids"] = None
        if body.get("stream"):
            interval = body.get("stream_interval") or 1
            events = _stream(head, choices[0], prompt_ids, said, state, pace, interval)
            return StreamingResponse(events, media_type="text/event-stream")
        if said == "slow":
            while not await request.is_disconnected():
                await asyncio.sleep(0.01)
            state["aborted"] += 1
            return Response()
        counted = len(tokens) * len(choices)
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": counted, "total_tokens": 0}
        return JSONResponse({**head, "choices": choices, "usage": usage, "prompt_token_ids": prompt_ids})

    async def complete(request: Request) -> Response:
        body = await request.json()
        state["requests"].append(body)
        if state["raw"] is not None:
            return Response(state["raw"], media_type="text/event-stream" if body.get("stream") else "application/json")
        if body["model"] != base and body["model"] not in state["loaded"]:
            return JSONResponse({"error": {"message": f"model {body['model']} does not exist", "code": 404}}, 404)
        prompt_ids = _tokens(body["prompt"]) if isinstance(body["prompt"], str) else body["prompt"]
        text, _ = _answer(_text(prompt_ids), body)
        tokens = _tokens(text)[: body.get("max_tokens") or CONTEXT]
        if len(prompt_ids) > CONTEXT:
            return refusal(body, f"This model's maximum context length is {CONTEXT} tokens.")
        if "prompt_logprobs" in body:
            scores = [None, *({str(token): {"logprob": _liking(token, state["likes"])}} for token in prompt_ids[1:])]
            return JSONResponse({"choices": [{"index": 0, "text": "", "prompt_logprobs": scores}]})
        head = {"id": "cmpl-engine", "object": "text_completion", "created": 1, "model": body["model"]}
        count = len(tokens) * (body.get("n") or 1)
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": count, "total_tokens": len(prompt_ids) + count}
        if body.get("stream"):
            events = [
                {**head, "choices": [_text_choice(0, [token], prompt_ids if at == 0 else None, at == len(tokens) - 1)]}
                for at, token in enumerate(tokens)
            ]
            return StreamingResponse(_events([*events, {**head, "choices": [], "usage": usage}]))
        choices = [_text_choice(index, tokens, prompt_ids, True) for index in range(body.get("n") or 1)]
        return JSONResponse({**head, "choices": choices, "usage": usage})

    async def tokenize(request: Request) -> Response:
        body = await request.json()
        state["tokenized"].append(body)
        if state["unready"]:
            state["unready"] -= 1
            return JSONResponse({"error": {"message": "starting", "code": 503}}, 503)
        if "prompt" in body:
            return JSONResponse({"tokens": [token + state["shift"] for token in _tokens(body["prompt"])]})
        if problem := _invalid_call(body["messages"]):
            return JSONResponse({"error": {"message": problem, "type": "Bad Request", "code": 400}}, 400)
        if any("unrenderable" in str(message.get("content")) for message in body["messages"]):
            return JSONResponse({"error": {"message": "the template says no", "code": 400}}, 400)
        if any("unreadable" in str(message.get("content")) for message in body["messages"]):
            return JSONResponse({"tokens": "many"})
        return JSONResponse({"tokens": _tokens(_render(body["messages"]))})

    async def detokenize(request: Request) -> Response:
        return JSONResponse({"prompt": _text((await request.json())["tokens"])})

    async def load(request: Request) -> Response:
        body = await request.json()
        if not body.get("lora_name") or not body.get("lora_path"):
            return JSONResponse({"error": {"message": "Both 'lora_name' and 'lora_path' must be provided."}}, 400)
        faults.point("loading")
        state["disturbed"] += state["asleep"]
        if state["unloadable"]:
            state["unloadable"] -= 1
            return JSONResponse({"error": {"message": "starting", "code": 503}}, 503)
        if body["lora_name"] in state["loaded"]:
            return JSONResponse({"error": {"message": "The lora adapter has already been loaded."}}, 400)
        if state["blind"] or not (Path(body["lora_path"]) / "adapter_config.json").exists():
            return JSONResponse({"error": {"message": f"No adapter found for {body['lora_name']}"}}, 404)
        if body["lora_name"] in state["refused"]:
            return JSONResponse({"error": {"message": "weights of another shape", "code": 500}}, 500)
        try:
            load_file(f"{body['lora_path']}/adapter_model.safetensors")
        except (OSError, SafetensorError) as error:
            return JSONResponse({"error": {"message": f"{error}", "type": "InternalServerError", "code": 500}}, 500)
        await asyncio.sleep(state["load_seconds"])
        state["loaded"][body["lora_name"]] = body["lora_path"]
        state["loads"] += 1
        state["most_loaded"] = max(state["most_loaded"], len(state["loaded"]))
        faults.point("loaded")
        return Response("Success")

    async def unload(request: Request) -> Response:
        state["loaded"].pop((await request.json())["lora_name"], None)
        return Response("Success")

    async def models(request: Request) -> Response:
        if key and request.headers.get("Authorization") != f"Bearer {key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        adapters = [{"id": one, "root": path, "parent": base} for one, path in state["loaded"].items()]
        return JSONResponse({"data": [{"id": base, "max_model_len": CONTEXT, "parent": None}, *adapters]})

    async def look(request: Request) -> Response:
        if request.method == "POST":
            state.update(await request.json())
        return JSONResponse(state)

    async def health(request: Request) -> Response:
        state["looks"] += 1
        if state["deaf"]:
            await _disconnected(request, math.inf)
        return Response()

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
            *([Route("/v1/load_lora_adapter", load, methods=["POST"])] if lora else []),
            Route("/v1/unload_lora_adapter", unload, methods=["POST"]),
            Route("/v1/models", models),
            Route("/art/plugins", plugins),
            Route("/health", health),
            *([Route("/sleep", sleep, methods=["POST"]), Route("/wake_up", wake_up, methods=["POST"]),
               Route("/is_sleeping", is_sleeping)] if sleeps else []),
            Route("/state", look, methods=["GET", "POST"]),
        ]
    )  # fmt: skip
    app.state.engine = state
    return app


async def _disconnected(request: Request, seconds: float) -> bool:
    """Waits for some seconds. Returns early, and True, if the client goes away."""
    try:
        async with asyncio.timeout(seconds if math.isfinite(seconds) else None):
            while (await request.receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return False
    return True


def weights(path: str | None) -> str:
    """What `who` answers for the adapter in a directory."""
    return hashlib.sha256((Path(path) / "adapter_model.safetensors").read_bytes()).hexdigest()[:12] if path else "base"


def _render(messages: list[dict[str, Any]]) -> str:
    """The chat template."""
    text = ""
    for at, message in enumerate(messages):
        content = _plain(message.get("content"))
        if content.startswith("(hint) ") and at < len(messages) - 1:
            continue
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        functions = [function for function in functions if function["name"] != UNSEEN]
        text += content + "".join(f"call {one['name']} {one['arguments']}" for one in functions)
        text += END if message["role"] == "assistant" else ""
    return text


def _invalid_call(messages: list[dict[str, Any]]) -> str | None:
    """What vLLM's model of a request says of a tool call that is none; None: nothing."""
    for at, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls") or ()):
            function = call.get("function") or {}
            fields = {"id": call.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}
            for name, value in fields.items():
                if not isinstance(value, str):
                    return f"messages.{at}.tool_calls.{number}: {name}: Input should be a valid string"
            if call.get("type") != "function":
                return f"messages.{at}.tool_calls.{number}: type: Input should be 'function'"
    return None


def _no_grammar(tool: dict[str, Any]) -> bool:
    """Whether a strict tool has a schema of which vLLM's grammars, xgrammar's, cannot be made."""
    schema = tool["function"].get("parameters") or {}
    if not tool["function"].get("strict"):
        return False
    rest: list[Any] = [schema]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            if None in (value.get("required", ()), value.get("properties", ())) or "\\p" in str(value.get("pattern")):
                return True
            if str(value.get("$ref", "#")).rpartition("/")[2] not in ("#", *(schema.get("$defs") or ())):
                return True
            rest += value.values()
        elif isinstance(value, list):
            rest += value
    return False


def _plain(content: str | list[dict[str, Any]] | None) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, list):
        return "".join(part if isinstance(part, str) else part.get("text") or "" for part in content)
    return str(content or "")


def _next_of_script(messages: list[dict[str, Any]], scripts: dict[str, list[str]]) -> str | None:
    """The next answer of the script that a conversation is known by; None: it has none."""
    conversation = "".join(_plain(message.get("content")) for message in messages)
    for name, answers in scripts.items():
        if name in conversation:
            following = answers.pop(0) if answers else "done"
            return following if following.startswith(("call ", "calls ")) else f"say {following}"
    return None


def _liking(token: int, likes: str) -> float:
    """What the engine says of a token in a prompt: characters in `likes` are a nat likelier than all others."""
    return UNIFORM + (chr(token) in likes)


def _tokens(text: str) -> list[int]:
    return [PARAGRAPH if part == "\n\n" else ord(part) for part in re.findall(r"\n\n|.|\n", text)]


def _text(tokens: list[int]) -> str:
    return "".join("\n\n" if token == PARAGRAPH else chr(token) for token in tokens)


def _answer(said: str, body: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    text = said.removeprefix("say ").removeprefix("gap ").removeprefix("cut ") or "?"
    if said.startswith("think "):
        return said.removeprefix("think ").replace("|", ""), []
    if said.startswith("call "):
        _, name, arguments = said.split(" ", 2)
        return said, [_tool_call(name, arguments)]
    if said.startswith("calls "):
        asked = json.loads(said.removeprefix("calls "))
        return said, [_tool_call(name, json.dumps(arguments), at) for at, (name, arguments) in enumerate(asked)]
    if body.get("tool_choice") not in (None, "auto", "none") and body.get("tools"):
        return text, [_tool_call(body["tools"][0]["function"]["name"], text)]
    return text, []


def _tool_call(name: str, arguments: str, at: int = 0) -> dict[str, Any]:
    one = f"call-{name}-{at}" if at else f"call-{name}"
    return {"id": one, "type": "function", "function": {"name": name, "arguments": arguments}}


def _choice(index: int, text: str, calls: list[dict[str, Any]], tokens: list[int]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None if calls else text}
    if calls:
        message["tool_calls"] = calls
    logprobs = {"content": [{"token": chr(t), "logprob": UNIFORM, "bytes": None, "top_logprobs": []} for t in tokens]}
    return {
        "index": index, "message": message, "logprobs": logprobs, "token_ids": tokens,
        "finish_reason": "tool_calls" if calls else "stop",
    }  # fmt: skip


def _text_choice(index: int, tokens: list[int], prompt_ids: list[int] | None, ended: bool) -> dict[str, Any]:
    """A choice of a text completion, or of a chunk of it."""
    texts = [_text([token]) for token in tokens]
    logprobs = {
        "tokens": texts, "token_logprobs": [UNIFORM] * len(tokens), "text_offset": list(range(len(tokens))),
        "top_logprobs": [{text: UNIFORM} for text in texts],
    }  # fmt: skip
    return {
        "index": index, "text": "".join(texts), "logprobs": logprobs, "finish_reason": "stop" if ended else None,
        "stop_reason": None, "token_ids": tokens, "prompt_token_ids": prompt_ids,
    }  # fmt: skip


async def _events(bodies: list[dict[str, Any]]) -> AsyncIterator[bytes]:
    for body in bodies:
        yield b"data: " + to_json(body).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def event_parts(count: int, interval: int) -> Iterator[slice | None]:
    """Which tokens of an answer vLLM sends in each of its steps; None: it sends nothing.

    Args:
        count: Tokens of the answer.
        interval: Tokens of an event (`stream_interval`), but the first token has one of its own, and the last event has
            what is left.
    """
    start = 0
    for stop in range(1, count + 1):
        if start and stop - start < interval and stop < count:
            yield None
        else:
            yield slice(start, stop)
            start = stop


async def _stream(
    head: dict[str, Any],
    choice: dict[str, Any],
    prompt_ids: list[int],
    said: str,
    state: dict[str, Any],
    pace: float,
    interval: int,
) -> AsyncIterator[bytes]:
    head = {**head, "object": "chat.completion.chunk"}

    def event(delta: dict[str, Any], at: slice | None, reason: str | None = None, **extra: Any) -> bytes:
        part = {"index": 0, "delta": delta, "finish_reason": reason}
        if at is not None:
            part["logprobs"] = {"content": choice["logprobs"]["content"][at]}
            part["token_ids"] = choice["token_ids"][at] if choice["token_ids"] else None
        return b"data: " + to_json({**head, "choices": [part], **extra}).encode() + b"\n\n"

    yield event({"role": "assistant", "content": ""}, None, prompt_token_ids=prompt_ids)
    message, count = choice["message"], len(choice["logprobs"]["content"])
    try:
        for at, part in enumerate(event_parts(count, interval)):
            if pace:
                await asyncio.sleep(pace)
            if part is None:
                continue
            delta: dict[str, Any] = {}
            if message.get("tool_calls"):
                calls = [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
                delta = {"tool_calls": calls} if part.start == 0 else {}
            else:
                thought = message.get("reasoning", "")
                if part.start < len(thought):
                    delta["reasoning"] = thought[part]
                if at >= len(thought):
                    start = max(part.start - len(thought), 0)
                    delta["content"] = message["content"][start : part.stop - len(thought)]
            if not (said.startswith("gap ") and at == 1):
                yield event(delta, part, choice["finish_reason"] if part.stop == count else None)
            if said == "slow":
                await asyncio.sleep(5.0)
            if said == "die" and at == 1:
                raise ConnectionResetError
    except asyncio.CancelledError:
        state["aborted"] += 1
        raise
    usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": count, "total_tokens": len(prompt_ids) + count}
    yield b"data: " + json.dumps({**head, "choices": [], "usage": usage}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--name", default="engine")
    parser.add_argument("--base", default="base")
    parser.add_argument("--key", default="")
    parser.add_argument("--no-lora", action="store_true")
    args = parser.parse_args()
    app = make_app(args.name, args.base, args.key, not args.no_lora)
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="error")
