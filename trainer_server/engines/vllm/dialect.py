"""A client of vLLM's HTTP API: models, adapters, chat, tokens, sleep, and errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trainer_server.common.routed_experts import MOST_TEXT
from trainer_server.engines.adapter_files import is_copy
from trainer_server.engines.base import AdapterLost, AdapterRefused, EngineLost, MalformedAnswer, RequestRefused
from trainer_server.engines.connection import (
    MOST_BYTES,
    Answer,
    AnswerStream,
    EngineConnection,
    RequestFailure,
    Unreadable,
)
from trainer_server.engines.vllm.replies import (
    Models,
    PluginReport,
    PromptScores,
    PromptTokens,
    TextReply,
    TextTokens,
    TokenText,
    VLLMReply,
    make_refusal,
    parse_json,
    read,
)
from trainer_server.wire import EngineError
from trainer_server.wire.json_size import off_loop
from trainer_server.wire.text import beginning

_LOAD_TIMEOUT = 120.0
"""Seconds for loading or unloading an adapter."""
_RENDER_TIMEOUT = 60.0
"""Seconds for rendering or tokenizing one text, which takes vLLM milliseconds."""
_SLEEP_TIMEOUT = 300.0
"""Seconds for moving an engine's weights between its GPU and main memory."""
_HEALTH_TIMEOUT = 10.0
"""Seconds for a health check."""
_LOOK_TIMEOUT = 30.0
"""Seconds for a question about vLLM's state."""
_PROBE_TIMEOUT = 10.0
"""Seconds for a request that is refused at once, or need not be answered."""
_SMOOTH_STREAMS = 8
"""Streams of one vLLM at once up to which each token is an event of its own. An event takes the processor of vLLM, of
this process and of the client about as long whether it has one token or sixteen: 50 µs here."""
_LONGEST_INTERVAL = 16
"""Most tokens of an event: a GPU with hundreds of requests samples them in a quarter of a second."""
_TOKEN_BYTES = 2048
"""Bytes of an answer for each sampled token, and for each alternative to it. They are 100 to 600 as a rule."""
_MOST_ANSWER = 256 * 2**20
"""Bytes of the largest answer."""
_MOST_MESSAGE = 4000
"""Characters of an error message that are passed on."""
_MESSAGE_VALUES = 2**14
"""Values of an error answer up to which its message is looked for. Of others the beginning is passed on."""
_COMMIT = re.compile("[0-9a-f]{40}")
_REQUEST_SECONDS = re.compile(r"^vllm:request_(queue|prefill|decode)_time_seconds_sum(?:\{.*\})? (\S+)$", re.MULTILINE)
TOOL_PROBE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Look."}],
    "tools": [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}},
    ],
    "tool_choice": "auto",
    "max_tokens": 1,
}
"""A request that vLLM refuses if it has no parser of tool calls."""
_AWAY = (502, 503, 504)
"""HTTP statuses of a proxy in front of vLLM, or of a vLLM that is starting."""


def _rename_thought(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its thought in the field `reasoning`, the only one that vLLM's /tokenize knows."""
    copy = dict(message)
    if (thought := copy.pop("reasoning_content", None)) is not None:
        copy.setdefault("reasoning", thought)
    return copy


class AdapterDelayed(EngineError):
    """vLLM does not load an adapter now, and may do so later."""


class Health(StrEnum):
    """What is known of a vLLM."""

    alive = "alive"
    """It answers that it is well."""
    silent = "silent"
    """It has not answered in time, or could not be asked because this process has no file left for a connection. It may
    be busy; requests that it has may go on."""
    away = "away"
    """It refuses connections, or answers that its engine loop is dead."""


class VLLMClient:
    """Client of one vLLM server.

    Every method but `health`, `healthy` and `close` raises EngineLost when vLLM does not answer, MalformedAnswer when
    its answer is too large or compressed, and EngineError when this process has no file left for a connection.

    Args:
        url: Root of the vLLM server, without `/v1`; or `unix:` and the path of its socket.
        api_key: The server's key; None: it has none.
        base: The name under which it serves the base model.
        cpu: Whether it computes on the CPU.
        revision: The commit of a base model from the hub; None: not known.
        harmony: Whether it renders chat requests in Harmony's format (gpt-oss).
        option: The option of `serve` that names it, for messages.
        key: The environment variable that has its key, for messages.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        *,
        base: str,
        cpu: bool,
        revision: str | None = None,
        harmony: bool = False,
        option: str = "--engine-url",
        key: str = "ART_ENGINE_API_KEY",
    ) -> None:
        self.url, self.api_key = url, api_key
        self._option, self._key = option, key
        self._base, self._cpu, self._revision, self._harmony = base, cpu, revision, harmony
        self._connection = EngineConnection(url, api_key)
        self._streams = 0

    async def close(self) -> None:
        """Closes all connections."""
        await self._connection.close()

    async def health(self) -> Health:
        """Asks whether vLLM's front end and its engine loop are alive. Does not raise."""
        try:
            answer = await self._connection.request("GET", "/health", timeout=_HEALTH_TIMEOUT)
        except RequestFailure as error:
            return Health.silent if error.timed_out or error.out_of_files else Health.away
        return Health.alive if answer.status == 200 else Health.away

    async def healthy(self) -> bool:
        """Whether vLLM says that it is alive. Does not raise."""
        return await self.health() == Health.alive

    async def check(self, *, sleeps: bool) -> int | None:
        """Checks whether this vLLM can serve the base model and its policies.

        Args:
            sleeps: Whether vLLM must be able to sleep.

        Returns:
            Context length in tokens; None if vLLM does not report it.

        Raises:
            EngineError: vLLM cannot serve them; the message says how to start it.
        """
        models = await self._models()
        names = [model["id"] for model in models if not model.get("parent")]
        if self._base not in names:
            raise EngineError(
                f"the engine at {self.url} serves {', '.join(names) or 'nothing'}, and this server trains "
                f"{self._base}: start that vLLM on the same model with --served-model-name {self._base}, or take its "
                "URL away"
            )
        # An engine of ours serves the directory of a commit; of others the commit is not known.
        roots = (str(model.get("root")) for model in models if model["id"] == self._base)
        commit = next(filter(_COMMIT.fullmatch, (Path(root).name for root in roots)), None)
        if commit and self._revision and commit != self._revision:
            raise EngineError(
                f"the engine at {self.url} serves commit {commit} of {self._base}, and this server trains commit "
                f"{self._revision}: start both with the same --revision"
            )
        # Where the route exists, vLLM refuses the empty body with another status than 404 and 405.
        if (await self._post("/v1/load_lora_adapter", {}, _LOOK_TIMEOUT)).status in (404, 405):
            raise EngineError(
                f"the engine at {self.url} loads no adapters at run time: start that vLLM with --enable-lora and with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
            )
        if sleeps and (await self._get("/is_sleeping")).status == 404:
            raise EngineError(
                f"the engine at {self.url} cannot give its GPU memory away for a while, as --share-gpu wants it: start "
                "that vLLM with --enable-sleep-mode and with VLLM_SERVER_DEV_MODE=1 in its environment"
            )
        return next((model["max_model_len"] for model in models if model.get("max_model_len")), None)

    async def parses_tools(self) -> bool | None:
        """Whether vLLM answers requests with tools, which it does with a parser only; None: it does not say.

        Asks the base model for one token. A refusal comes at once, an answer perhaps not, if many requests wait.
        """
        try:
            answer = await self._post("/v1/chat/completions", {"model": self._base, **TOOL_PROBE}, _PROBE_TIMEOUT)
        except EngineError:
            return None
        if answer.status == 200:
            return True
        return False if "--tool-call-parser" in answer.text else None

    async def plugin_report(self) -> PluginReport | None:
        """What the plugins in this vLLM say of it (vllm_plugins/art_key.py).

        Returns:
            None: it was started without the plugins, or does not say.
        """
        answer = await self._get("/art/plugins")
        try:
            return PluginReport(**await _read(answer, PluginReport)) if answer.status == 200 else None
        except (ValueError, MalformedAnswer):
            return None

    async def adapters(self) -> dict[str, str]:
        """The adapters that vLLM holds: name → path.

        Raises:
            EngineError: vLLM's answer is no list of models.
        """
        return {model["id"]: str(model.get("root")) for model in await self._models() if model.get("parent")}

    async def load(self, name: str, path: Path) -> None:
        """Loads an adapter. An adapter of the same name from another path is unloaded first.

        Raises:
            AdapterRefused: vLLM does not load the adapter.
            AdapterDelayed: vLLM is starting, or cannot fetch the adapter from this server now.
        """
        body = {"lora_name": name, "lora_path": str(path)}
        answer = await self._post("/v1/load_lora_adapter", body, _LOAD_TIMEOUT)
        if "already been loaded" in answer.text:
            root = (await self.adapters()).get(name)
            if root is not None and not await asyncio.to_thread(is_copy, root, path):
                # Another server, or another home, loaded other weights under this name.
                await self.unload(name)
                answer = await self._post("/v1/load_lora_adapter", body, _LOAD_TIMEOUT)
        if answer.status in _AWAY:
            message = await _message(answer.content)
            raise AdapterDelayed(f"{self.url} answered {answer.status} to loading {name}: {message}")
        if answer.status != 200 and "already been loaded" not in answer.text:
            raise AdapterRefused(f"vLLM at {self.url} refused adapter {name}: {answer.text[:500]}")

    async def unload(self, name: str) -> None:
        """Unloads an adapter, if it is loaded.

        Raises:
            EngineError: vLLM does not unload it.
        """
        answer = await self._post("/v1/unload_lora_adapter", {"lora_name": name}, _LOAD_TIMEOUT)
        if answer.status not in (200, 404):
            raise EngineError(f"vLLM at {self.url} did not unload {name}: {answer.text[:500]}")

    async def request_seconds(self) -> dict[str, float] | None:
        """What finished requests have spent in vLLM; see Engine.request_seconds. None: its metrics do not say.

        Raises:
            EngineLost: vLLM does not answer.
        """
        answer = await self._get("/metrics")
        totals: dict[str, float] = {}
        for phase, seconds in _REQUEST_SECONDS.findall(answer.text):  # a line for each rank
            totals[phase] = totals.get(phase, 0.0) + float(seconds)
        return totals or None

    async def sleep(self) -> None:
        """Moves the weights to main memory and drops the KV cache. Running generations are aborted.

        Raises:
            EngineLost: vLLM does not answer, or answers with an error.
        """
        await self._expect_success("/sleep", {"level": "1", "mode": "abort"})

    async def wake_up(self) -> None:
        """Ends the sleep. Does nothing to a vLLM that is awake.

        Raises:
            EngineLost: vLLM does not answer, or answers with an error.
        """
        await self._expect_success("/wake_up", {})

    @asynccontextmanager
    async def chat(self, request: Mapping[str, Any]) -> AsyncIterator[VLLMReply]:
        async with self._generation("/v1/chat/completions", request) as response:
            yield VLLMReply(response, self.url, _token_bytes(request))

    @asynccontextmanager
    async def complete(self, request: Mapping[str, Any]) -> AsyncIterator[TextReply]:
        body = {name: value for name, value in request.items() if name != "top_logprobs"}
        body |= {"logprobs": request.get("top_logprobs", 0), "return_tokens_as_token_ids": False}
        async with self._generation("/v1/completions", body) as response:
            yield TextReply(response, self.url, _token_bytes(body))

    @asynccontextmanager
    async def _generation(self, path: str, request: Mapping[str, Any]) -> AsyncIterator[AnswerStream]:
        """An accepted request. Leaving the context early aborts the generation."""
        body = dict(request)
        if (prompt := body.pop("prompt_token_ids", None)) is not None:
            # vLLM then renders nothing; parsers, grammar and streaming stay as they are. Older ones ignore the field.
            body["kv_transfer_params"] = {"prompt_token_ids": prompt}
        if self._cpu:
            body.pop("seed", None)  # vLLM on CPUs can crash when requests have seeds
        # A generation may take any time: clients set a limit.
        async with AsyncExitStack() as stack:
            if body.get("stream"):
                body["stream_interval"] = stack.enter_context(self._stream_interval())
            try:
                stream = self._connection.stream("POST", path, body=body, most_bytes=_most_bytes(body))
                answer = await stack.enter_async_context(stream)
                refusal = b"" if answer.status == 200 else await answer.read()
            except RequestFailure as error:
                raise self._engine_error(error) from error
            if answer.status != 200:
                await self._raise_refusal(answer.status, refusal, body["model"])
            yield answer

    @contextmanager
    def _stream_interval(self) -> Iterator[int]:
        """How many tokens each event of a further stream has, while the stream is open.

        All streams of one vLLM together have as many events a step as `_SMOOTH_STREAMS`, so that this process keeps up
        with a GPU. vLLM sends the first token and the end at once whatever the interval; versions that do not know it
        send each token by itself.
        """
        self._streams += 1
        try:
            yield min(-(-self._streams // _SMOOTH_STREAMS), _LONGEST_INTERVAL)
        finally:
            self._streams -= 1

    async def render(self, chat: Mapping[str, Any], *, generation: bool) -> list[int]:
        body = {**chat, "messages": [_rename_thought(message) for message in chat["messages"]]}
        if self._harmony and generation:  # /tokenize renders with the chat template, which chat requests do not use
            body |= {"max_tokens": 1, "return_token_ids": True}
            return list((await self._query_tokenizer("/v1/chat/completions", body, PromptTokens))["prompt_token_ids"])
        body["add_generation_prompt"] = generation
        return list((await self._query_tokenizer("/tokenize", body, TextTokens))["tokens"])

    async def tokenize(self, text: str) -> list[int]:
        body = {"prompt": text, "add_special_tokens": False}
        return list((await self._query_tokenizer("/tokenize", body, TextTokens))["tokens"])

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return str((await self._query_tokenizer("/detokenize", {"tokens": list(tokens)}, TokenText))["prompt"])

    async def prompt_logprobs(self, tokens: Sequence[int], count: int) -> list[float | None]:
        """How likely the base model finds the last tokens of a text, at temperature 1.

        Args:
            tokens: The text, as token ids.
            count: Of how many of its last tokens.

        Returns:
            Log-probabilities in nats; None where vLLM gave none.

        Raises:
            RequestRefused: vLLM answered with an error; for example, the text is too long.
        """
        body = {"model": self._base, "prompt": list(tokens), "max_tokens": 1, "prompt_logprobs": 0}
        async with self._generation("/v1/completions", body) as response:
            (choice,) = (await VLLMReply(response, self.url, _token_bytes(body)).read(PromptScores))["choices"]
        by_token = choice.get("prompt_logprobs") or []
        if len(by_token) != len(tokens):
            return [None] * count
        last = zip(tokens[-count:], by_token[-count:], strict=True)
        return [((entry or {}).get(str(token)) or {}).get("logprob") for token, entry in last]

    async def list_models(self) -> list[str]:
        """Names of the models that it serves, without adapters.

        Raises:
            EngineError: vLLM's answer is no list of models.
        """
        return [str(model["id"]) for model in await self._models() if not model.get("parent")]

    async def _models(self) -> list[dict[str, Any]]:
        """The models that vLLM serves: base models, and adapters, which have a `parent`."""
        answer = await self._get("/v1/models")
        if answer.status in (401, 403):
            raise EngineError(
                f"the engine at {self.url} refuses the key: set {self._key} to what vLLM was given by --api-key or "
                f"VLLM_API_KEY, the same for all addresses of {self._option}"
            )
        try:
            return list((await _read(answer, Models))["data"])
        except (ValueError, MalformedAnswer) as error:
            raise EngineError(
                f"{self.url}/v1/models answered {answer.status} and no list of models ({error}): {self._option} "
                "must name the root of a vLLM server"
            ) from None

    async def _raise_refusal(self, status: int, body: bytes, model: str) -> None:
        """Raises the error that fits an error answer to a request: AdapterLost, EngineLost or RequestRefused."""
        message = await _message(body)
        if status == 404 and model != self._base:
            raise AdapterLost(f"{self.url} does not hold {model}: {message}")
        if status >= 500 and await self.health() == Health.away:
            raise EngineLost(f"{self.url} is dying: {message}")
        raise make_refusal(message, status)

    async def _query_tokenizer(self, path: str, body: dict[str, Any], form: type[BaseModel]) -> dict[str, Any]:
        """Asks vLLM's tokenizer, which is the same for all adapters. form: that of the answer."""
        answer = await self._post(path, {"model": self._base, **body}, _RENDER_TIMEOUT)
        if answer.status == 404:
            raise RequestRefused(f"{self.url}{path} is not found: the engine must be a vLLM that offers it", status=404)
        if answer.status in _AWAY:
            raise EngineError(f"{self.url}{path} answered {answer.status}: {answer.text[:200]}")
        if answer.status != 200:
            message = f"the engine cannot render it: {answer.text[:500]}"
            raise RequestRefused(message, status=answer.status)
        try:
            return await _read(answer, form)
        except (ValueError, MalformedAnswer) as error:
            raise MalformedAnswer(f"{self.url}{path} answered what is no answer of vLLM: {error}") from None

    async def _expect_success(self, path: str, params: dict[str, str]) -> None:
        answer = await self._answer("POST", path, _SLEEP_TIMEOUT, params=params)
        if answer.status >= 400:
            raise EngineLost(f"{self.url}{path} answered {answer.status}: {answer.text[:200]}")

    async def _get(self, path: str) -> Answer:
        return await self._answer("GET", path, _LOOK_TIMEOUT)

    async def _post(self, path: str, body: dict[str, Any], timeout: float) -> Answer:
        return await self._answer("POST", path, timeout, body=body)

    async def _answer(self, method: str, path: str, timeout: float, **sent: Mapping[str, Any]) -> Answer:
        try:
            return await self._connection.request(method, path, timeout=timeout, **sent)
        except RequestFailure as error:
            raise self._engine_error(error) from error

    def _engine_error(self, error: RequestFailure) -> EngineError:
        if isinstance(error, Unreadable):
            return MalformedAnswer(f"{self.url}: {error.why}")
        if error.out_of_files:
            return EngineError(
                f"the server has no file left for a connection to {self.url}: raise its limit of open files (ulimit -n)"
            )
        return EngineLost(f"{self.url}: {error}", reached=error.reached)


def _token_bytes(request: Mapping[str, Any]) -> int:
    """How many bytes the tokens of the answer to a request can have, beyond MOST_BYTES."""
    if request.get("max_tokens") is None:
        return _MOST_ANSWER - MOST_BYTES
    tokens = int(request["max_tokens"]) * int(request.get("n", 1))
    if "prompt_logprobs" in request:
        tokens += len(request["prompt"])
    alternatives = int(request.get("top_logprobs") or request.get("logprobs") or 0)  # text completions: `logprobs`
    return min(tokens * _TOKEN_BYTES * (1 + alternatives), _MOST_ANSWER - MOST_BYTES)


def _most_bytes(request: Mapping[str, Any]) -> int:
    """How large the answer to a request can be."""
    experts = 0 if request.get("stream") else int(request.get("n", 1)) * MOST_TEXT  # vLLM streams none
    return min(MOST_BYTES + _token_bytes(request) + experts, _MOST_ANSWER)


async def _read(answer: Answer, form: type[BaseModel]) -> dict[str, Any]:
    """An answer of a form, read on a thread where it is large. Raises what `read` raises."""
    return await off_loop(len(answer.content), partial(read, answer.content, form))


async def _message(body: bytes) -> str:
    """The message in vLLM's error answer; the beginning of the body where it has another form."""

    def message() -> str:
        answer = parse_json(body, _MESSAGE_VALUES)
        return beginning(str((answer.get("error") or answer).get("message") or answer), _MOST_MESSAGE)

    try:
        return await off_loop(len(body), message)
    except (ValueError, AttributeError, MalformedAnswer):
        return beginning(body[:4000].decode(errors="replace"), 500)
