"""The protocol of an inference engine. vLLM implements it; another engine, such as SGLang, needs one more class.

Gateway, jobs, pool and slots use `Engine` and the errors of this module only; they know no engine's HTTP API. See "A
new engine" in docs/contributing/engine.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trainer_server.common import Home
from trainer_server.engines.served_model import ServedModel
from trainer_server.wire import EngineError


class EngineLost(EngineError):
    """The engine went away while it worked on a request.

    Args:
        message: What happened, with the engine's address.
        reached: False if the request cannot have reached the engine, so that it cannot be what the engine died of.
    """

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


class AdapterLost(EngineLost):
    """The engine does not hold the adapter that a request names, for example because somebody restarted the engine."""


class TeacherLost(EngineLost):
    """A teacher does not answer, or went away in the middle of an answer."""


class MalformedAnswer(EngineError):
    """The engine answered a request with something that is no answer to it. It may answer others."""


class AdapterRefused(EngineError):
    """The engine is healthy and does not load this adapter."""


class RequestRefused(EngineError):
    """The engine is healthy and answered a request with an error.

    Args:
        message: The engine's error message.
        status: The engine's HTTP status, or the nearest one.
        too_long: True if prompt and answer together do not fit the model's context.
    """

    def __init__(self, message: str, *, status: int, too_long: bool = False) -> None:
        super().__init__(message)
        self.status, self.too_long = status, too_long


class Reply(Protocol):
    """An answer to a request that the engine has accepted. Call either `whole` or `chunks`, and only once."""

    async def whole(self) -> dict[str, Any]:
        """The answer to a request without `stream`: an OpenAI chat completion with exact tokens, see `Engine.chat`.

        Raises:
            EngineLost: The engine went away.
            MalformedAnswer: The answer has another form.
        """
        ...

    def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """The chunks of an answer to a request with `stream`: OpenAI chat completion chunks with exact tokens.

        Raises:
            EngineLost: The engine went away, or the stream ended before its first chunk.
            MalformedAnswer: A chunk has another form.
        """
        ...


@runtime_checkable
class BatchesChunks(Protocol):
    """What a reply may have besides. A stream that is read more slowly than the engine samples costs less with it."""

    def batches(self) -> AsyncIterator[list[dict[str, Any]]]:
        """The chunks of `Reply.chunks`, in place of them: those that came together, together. Raises what it raises,
        once the chunks before the fault were given."""
        ...


async def batches_of(reply: Reply) -> AsyncIterator[list[dict[str, Any]]]:
    """The chunks of a reply, in lists of at least one. Raises what `Reply.chunks` raises."""
    if isinstance(reply, BatchesChunks):
        async for batch in reply.batches():
            yield batch
    else:
        async for chunk in reply.chunks():
            yield [chunk]


class EngineClient(Protocol):
    """The part of an engine that requests need once it was chosen for them."""

    @property
    def url(self) -> str:
        """The engine's name in messages: its address, where it has one."""
        ...

    @property
    def max_model_len(self) -> int | None:
        """The longest context, in tokens: prompt and answer together; None until it is known."""
        ...

    @property
    def no_tools(self) -> str | None:
        """Why the engine cannot answer requests with tools, with the remedy; None: it can, or it is not known."""
        ...

    @property
    def constrains_calls(self) -> bool:
        """Whether a grammar constrains all answers that may be tool calls, also of requests that ask for none."""
        ...

    def chat(self, request: Mapping[str, Any]) -> AbstractAsyncContextManager[Reply]:
        """Asks for a chat completion. Leaving the context early aborts the generation.

        `model` names the base model or a loaded adapter. The answer must carry exact tokens in vLLM's format:
        `prompt_token_ids` at the top level (of the first chunk), and in each choice `token_ids` and `logprobs.content`,
        with one entry for each sampled token. The log-probabilities are those of the distribution that was sampled
        from, after temperature, truncation, penalties and grammar. `usage.completion_tokens` (of the last chunk) is the
        number of sampled tokens of all choices: an answer with fewer token ids is never trained.

        Args:
            request: An OpenAI chat completion request, with vLLM's extensions. With `stream`, read the reply's
                `chunks`; without, `whole`. If it has `prompt_token_ids`, these are the prompt, and `messages` are not
                rendered. An engine that cannot do so ignores them, and reports the prompt that it rendered.

        Raises:
            RequestRefused: The engine answered with an error.
            AdapterLost: The engine does not hold the adapter `model`.
            EngineLost: The engine went away. Also raised by reading the reply.
        """
        ...

    def complete(self, request: Mapping[str, Any]) -> AbstractAsyncContextManager[Reply]:
        """Asks for a text completion: the model goes on with a prompt that no chat template renders.

        The answer has the form of `chat`'s: the text is the content of the message, or of the deltas. Its tokens are as
        exact. `prompt_token_ids` are those of `prompt`, with the special tokens that the engine puts before a text.

        Args:
            request: As for `chat`, with `prompt` in place of `messages`: a text, or a list of token ids.

        Raises:
            RequestRefused: The engine answered with an error.
            AdapterLost: The engine does not hold the adapter `model`.
            EngineLost: The engine went away. Also raised by reading the reply.
        """
        ...

    async def render(self, chat: Mapping[str, Any], *, generation: bool) -> list[int]:
        """Renders a conversation with the model's chat template, to the same tokens that `chat` prompts with.

        Args:
            chat: `messages`, and optionally `tools`, `chat_template_kwargs` and `continue_final_message`, as in a chat
                request.
            generation: Whether the generation prompt, the start of the next answer, is added.

        Returns:
            Token ids.

        Raises:
            RequestRefused: The template does not render this conversation.
            EngineLost: The engine went away.
        """
        ...

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens.

        Raises:
            RequestRefused: The engine answered with an error.
            EngineLost: The engine went away.
        """
        ...

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids, special tokens included.

        Raises:
            RequestRefused: The engine answered with an error.
            EngineLost: The engine went away.
        """
        ...


class Engine(EngineClient, Protocol):
    """One inference server that serves a base model and LoRA adapters on it.

    `start` starts the engine, `stop` ends it. In between the engine may go away and come back by itself. It is `ready`
    while it can answer. Before it is ready again it loads all adapters in `wanted`.
    """

    wanted: dict[str, Path]
    """Adapters that the engine must hold, by name: their directories in PEFT's format. The pool adds and removes them;
    an engine that was away loads all of them before it is `ready`."""

    @property
    def ready(self) -> bool:
        """Whether the engine answers requests now and holds every adapter that it was given."""
        ...

    @property
    def resting(self) -> bool:
        """Whether the engine rests or is about to rest; see `rest`."""
        ...

    @property
    def busy(self) -> int:
        """Number of requests that the engine is answering, plus adapters that it is loading or unloading."""
        ...

    @property
    def restarts(self) -> int:
        """How often the engine was started again after it had died."""
        ...

    @property
    def failure(self) -> str | None:
        """Why the engine is not ready; None if that is not known, or it is ready."""
        ...

    async def check(self) -> None:
        """Checks whether an engine that was started elsewhere can serve this base model and its policies.

        Raises:
            EngineLost: The engine does not answer. It may answer later.
            EngineError: The engine can never serve them; the message says what to change.
        """
        ...

    async def start(self, progress: Callable[[str], None] = ...) -> None:
        """Starts the engine and returns once it is ready, or once `failure` says why it is not.

        Does not raise for an engine that cannot be started: the engine tries again until `stop`.

        Args:
            progress: Is called with lines to show to the user.
        """
        ...

    async def stop(self) -> None:
        """Ends the engine and frees its resources. Does nothing to an engine that was never started."""
        ...

    async def wait_ready(self, timeout: float) -> None:
        """Waits until the engine is ready.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            EngineError: The engine is not ready after `timeout` seconds; or earlier, where it dies again and again
                without an answer. The message says why it is not ready.
        """
        ...

    def occupied(self) -> AbstractContextManager[None]:
        """Counts as one request in `busy` while the context is open. `rest` waits until it is left."""
        ...

    def suspect(self, failure: str | None = None) -> None:
        """Reports that something went wrong with the engine. It is not `ready` until it has checked itself.

        Args:
            failure: What went wrong, where the caller knows it.
        """
        ...

    def rest(self) -> AbstractAsyncContextManager[None]:
        """Frees the engine's GPU memory while the context is open (`serve --share-gpu`).

        The engine takes no new requests, and finishes the requests that it has. It is ready again some time after the
        context was left. Only engines that share a GPU with the trainer are asked to rest.
        """
        ...

    async def load(self, name: str, path: Path) -> None:
        """Loads an adapter that is in `wanted`. Does nothing if it is loaded already.

        Args:
            name: The adapter's name in requests: `policy@version`. It is never used for other weights.
            path: The adapter's directory, in PEFT's format.

        Raises:
            AdapterRefused: The engine is healthy and does not load the adapter.
            EngineError: The engine went away before the adapter was loaded.
        """
        ...

    async def unload(self, name: str) -> None:
        """Unloads an adapter. Does nothing if it is not loaded.

        Raises:
            EngineError: The engine is healthy and does not unload the adapter.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """The engine's state, as `GET /api/engines` shows it: `url`, `ready`, `resting`, `error`, `requests`,
        `restarts`, `adapters`, `max_model_len`, `tool_parser`, `reasoning_parser`, and `pid` of one that was started
        here. A parser is None if there is none, and `unknown` where the engine does not say. An engine of patched
        parts may add `missing`: by feature that it goes without, what it lacks for it; `unknown` as above. An engine
        may add `max_num_seqs`, the requests that it computes at once: clients run as many rollouts."""
        ...


@runtime_checkable
class Reachable(Protocol):
    """What an engine may have besides: other processes of the server send requests to its `url` (`serve --gateways`).
    Its factory makes a client of it where `EngineSettings.urls` has the `url`, and `api_key` the `key`."""

    key: str | None
    """What requests to its `url` must carry; None: nothing."""

    def note_request(self, *, lost: bool) -> None:
        """Takes note of a request that another process sent. lost: whether the engine went away; else it answered."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The options of `serve` that concern engines.

    Args:
        base: The base model.
        home: Where the server keeps its state. Engines write their logs into `home.logs`.
        cpu: Whether engines compute on the CPU.
        urls: Engines that run elsewhere (`--engine-url`); empty: the factory starts engines here.
        api_key: Key of the engines at `urls`.
        gpus: One engine is started for each entry, on these GPUs (`0`, or `2,3`); empty: one engine, on all GPUs.
        args: `--engine-args`, passed to the engine unchanged.
        env: `--engine-env`: environment variables that an engine gets besides those that every child gets.
        adapter_slots: Adapters that an engine holds at once.
        max_rank: Largest LoRA rank that an engine takes.
        kv_cache_gib: Memory for the KV cache on CPUs, GiB.
        share_gpu: Whether the trainer uses the same GPUs by turns, so that `Engine.rest` is needed.
        media_domains: Domains from which engines may fetch images and other media; empty: they fetch nothing.
        tool_call_parser: `--tool-call-parser`: which parser reads tool calls. `auto`: the engine chooses; `none`: none.
        reasoning_parser: `--reasoning-parser`: which parser separates thoughts from answers; as `tool_call_parser`.
    """

    base: ServedModel
    home: Home
    cpu: bool
    urls: tuple[str, ...] = ()
    api_key: str | None = None
    gpus: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    adapter_slots: int = 6
    max_rank: int = 16
    kv_cache_gib: int = 2
    share_gpu: bool = False
    media_domains: tuple[str, ...] = ()
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"


UNKNOWN = "unknown"
"""What `Engine.describe` says of a parser, or of missing parts, where the engine does not tell."""

EngineFactory = Callable[[EngineSettings], Sequence[Engine]]
"""Makes the engines of a server, without starting them. Raises ConfigError for settings that it does not support."""


def missing_text(missing: Mapping[str, Sequence[str]]) -> str:
    """The `missing` of `Engine.describe` in words: each feature, and what it lacks."""
    return "; ".join(f"{feature} (it has not {', '.join(parts)})" for feature, parts in missing.items())


def readable(adapter: Path) -> bool:
    """Whether this machine can read the files in an adapter's directory."""
    return (adapter / "adapter_config.json").exists()


@runtime_checkable
class CountsSeconds(Protocol):
    """What an engine may have besides."""

    async def request_seconds(self) -> dict[str, float] | None:
        """Seconds that finished requests have spent in the engine, by phase: `queue` until they were computed,
        `prefill` until the first token, `decode` until the last. They are sums over requests, which overlap. None: the
        engine does not count them.

        Raises:
            EngineLost: The engine went away.
        """
        ...
