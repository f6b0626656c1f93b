"""What the server needs of one inference engine. vLLM has it; another engine, such as SGLang, is one class more.

Everything above this package - gateway, jobs, the pool and the slots - knows `Engine` and the errors here, and no HTTP
of any engine. See "A new engine" in docs/contributing.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainer_server.engines.served_model import ServedModel
from trainer_server.wire import EngineError, Home


class EngineLost(EngineError):
    """The engine went away while it worked on a request.

    Args:
        message: What happened, with the engine's address.
        reached: False if the request cannot have reached the engine, so that it is not what the engine died of.
    """

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


class AdapterLost(EngineLost):
    """The engine does not hold the adapter that a request names: somebody restarted the engine, for example."""


class AdapterRefused(EngineError):
    """The engine is healthy and does not load this adapter."""


class RequestRefused(EngineError):
    """The engine is healthy and answered a request with an error.

    Args:
        message: The engine's words.
        status: The engine's HTTP status, or the nearest one.
        too_long: True if prompt and answer together do not fit the model's context.
    """

    def __init__(self, message: str, *, status: int, too_long: bool = False) -> None:
        super().__init__(message)
        self.status, self.too_long = status, too_long


class Reply(Protocol):
    """An answer to a chat request that the engine has accepted. Read it in one of two ways, once."""

    async def whole(self) -> dict[str, Any]:
        """The answer to a request without `stream`: an OpenAI chat completion with exact tokens, see `Engine.chat`.

        Raises:
            EngineLost: The engine went away.
        """
        ...

    def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """The chunks of an answer to a request with `stream`: OpenAI chat completion chunks with exact tokens.

        Raises:
            EngineLost: The engine went away, or the stream ended before its first chunk.
        """
        ...


class Engine(Protocol):
    """One inference server that serves a base model and LoRA adapters on it.

    An engine has a life: `start` begins it, `stop` ends it. In between the engine may go away and come back by itself.
    It is `ready` while it can answer; before it is ready again it loads all adapters in `wanted`.
    """

    wanted: dict[str, Path]
    """Adapters that the engine must hold, by name: their directories in PEFT's format. The pool adds and removes them;
    an engine that was away loads all of them before it is `ready`."""

    @property
    def url(self) -> str:
        """What messages call the engine; its address, where it has one."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the engine answers requests now and holds every adapter that it was given."""
        ...

    @property
    def resting(self) -> bool:
        """Whether the engine rests, or is about to; see `rest`."""
        ...

    @property
    def busy(self) -> int:
        """Requests that the engine is answering, and adapters that it is loading or unloading."""
        ...

    @property
    def restarts(self) -> int:
        """How often the engine was started again after it had died."""
        ...

    @property
    def failure(self) -> str | None:
        """Why the engine is not ready, where that is known."""
        ...

    @property
    def max_model_len(self) -> int | None:
        """Tokens of the longest prompt and answer together; None until it is known."""
        ...

    async def check(self) -> None:
        """Looks whether an engine that was started by others can serve this base model and its policies.

        Raises:
            EngineLost: It does not answer. It may come later.
            EngineError: It can never serve them; the message says what to change.
        """
        ...

    async def start(self, progress: Callable[[str], None] = ...) -> None:
        """Starts the engine and returns once it is ready, or once `failure` says why it is not.

        Never raises for an engine that cannot be started: it goes on trying until `stop`.

        Args:
            progress: Gets lines to be shown to the user.
        """
        ...

    async def stop(self) -> None:
        """Ends the engine and frees what it holds. Also for an engine that was never started."""
        ...

    async def wait_ready(self, timeout: float) -> None:
        """Waits until the engine is ready.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            EngineError: It is not ready after `timeout` seconds.
        """
        ...

    def occupied(self) -> AbstractContextManager[None]:
        """Counts one request in `busy` for as long as the context lasts. `rest` waits for it."""
        ...

    def suspect(self, failure: str | None = None) -> None:
        """Tells the engine that something went wrong with it: it is not `ready` until it has looked at itself.

        Args:
            failure: What went wrong, where the caller knows it.
        """
        ...

    def rest(self) -> AbstractAsyncContextManager[None]:
        """Frees the engine's GPU memory for as long as the context lasts (`serve --share-gpu`).

        The engine takes no new requests and finishes those that it has. It is ready again some time after the context
        was left. An engine that shares no GPU with the trainer is never asked to rest.
        """
        ...

    async def load(self, name: str, path: Path) -> None:
        """Loads an adapter that is in `wanted`. Fine for one that is loaded already.

        Args:
            name: What requests call the adapter: `policy@version`. Never used for other weights again.
            path: Its directory, in PEFT's format.

        Raises:
            AdapterRefused: The engine is healthy and does not take the adapter.
            EngineError: The engine went away meanwhile.
        """
        ...

    async def unload(self, name: str) -> None:
        """Gives an adapter up. Fine for one that is not loaded.

        Raises:
            EngineError: The engine is healthy and does not give the adapter up.
        """
        ...

    def chat(self, request: Mapping[str, Any]) -> AbstractAsyncContextManager[Reply]:
        """Asks for a chat completion. Leaving the context early aborts the generation.

        `model` names the base model or a loaded adapter. The answer must carry exact tokens, as vLLM has them:
        `prompt_token_ids` at the top (of the first chunk), and in each choice `token_ids` and `logprobs.content`, one
        entry for each sampled token. The log-probabilities are those of the distribution that was sampled from: after
        temperature, truncation, penalties and grammar.

        Args:
            request: An OpenAI chat completion request, with vLLM's extensions. With `stream`, read the reply's
                `chunks`; without, `whole`.

        Raises:
            RequestRefused: The engine answered with an error.
            AdapterLost: The engine does not hold the adapter `model`.
            EngineLost: The engine went away. Also raised by reading the reply.
        """
        ...

    async def render(self, chat: Mapping[str, Any], *, generation: bool) -> list[int]:
        """Token ids of a conversation by the model's chat template, the same that `chat` prompts with.

        Args:
            chat: `messages`, and where there are any `tools` and `chat_template_kwargs`, as in a chat request.
            generation: Whether the start of the next answer follows.

        Raises:
            RequestRefused: The template does not render this conversation.
            EngineLost: The engine went away.
        """
        ...

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens. Raises what `render` raises."""
        ...

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids, special tokens included. Raises what `render` raises."""
        ...

    def describe(self) -> dict[str, Any]:
        """The engine's state, as `GET /api/engines` shows it: `url`, `ready`, `resting`, `error`, `requests`,
        `restarts`, `adapters`, `max_model_len`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What `serve` was asked for, as far as it concerns engines.

    Args:
        base: The base model.
        home: Where the server keeps its state; logs of engines belong into `home.logs`.
        cpu: Whether engines compute on the CPU.
        urls: Engines that run elsewhere (`--engine-url`); empty: the factory starts its own.
        api_key: Key of the engines at `urls`.
        gpus: One engine is started for each entry, on these GPUs (`0`, or `2,3`); empty: one engine, on all.
        args: `--engine-args`, passed on as they are.
        adapter_slots: Adapters that an engine holds at once.
        max_rank: Largest LoRA rank that an engine takes.
        kv_cache_gib: Memory for the KV cache on CPUs, GiB.
        share_gpu: Whether the trainer uses the same GPUs by turns, so that `Engine.rest` is needed.
    """

    base: ServedModel
    home: Home
    cpu: bool
    urls: tuple[str, ...] = ()
    api_key: str | None = None
    gpus: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    adapter_slots: int = 6
    max_rank: int = 16
    kv_cache_gib: int = 2
    share_gpu: bool = False


EngineFactory = Callable[[EngineSettings], Sequence[Engine]]
"""Makes the engines of a server, not yet started. Raises ConfigError for settings that it cannot have."""


def readable(adapter: Path) -> bool:
    """Whether the files of an adapter are there, seen from this machine."""
    return (adapter / "adapter_config.json").exists()
