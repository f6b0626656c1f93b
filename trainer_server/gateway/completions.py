"""OpenAI's completions: a text, or token ids, that the model goes on with. There are no messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from trainer_server.gateway.client_api import ClientAPI, DataExchange, refuse, sse
from trainer_server.gateway.parameters import Handling, check_names, handling_of
from trainer_server.wire.completions import TEXT, answer_id
from trainer_server.wire.json_size import MOST_VALUES

_REMEDIES = {"suffix": "a suffix is not offered: put what comes after into the prompt, as the model was trained for it"}

PARAMETERS = handling_of(
    use="best_of echo logprobs max_tokens model prompt",
    forward="frequency_penalty logit_bias n presence_penalty seed stop stream stream_options temperature top_p",
    drop="user",
    refuse=_REMEDIES,
)
"""All parameters of `completions.create` in OpenAI's Python SDK. A test fails when the SDK has others."""

_VLLM = (
    "ignore_eos",
    "include_stop_str_in_output",
    "min_p",
    "min_tokens",
    "repetition_penalty",
    "return_token_ids",
    "skip_special_tokens",
    "stop_token_ids",
    "structured_outputs",
    "top_k",
)
_ALL = PARAMETERS | dict.fromkeys(_VLLM, Handling.forward)
_SAME = {name for name, handling in _ALL.items() if handling == Handling.forward}
_MOST_LOGPROBS = 20


class TextExchange(DataExchange):
    """A text completion, as a chat request without messages.

    Args:
        body: The request.
    """

    names: Mapping[str, str] = MappingProxyType({"top_logprobs": "logprobs"})

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body.get("stream_options"))
        self.dropped_names = check_names(body, _ALL, _REMEDIES)
        fields = {name: value for name, value in body.items() if value is not None}
        self.prompt: str | list[int] | None = _prompt(fields.get("prompt"))
        self._echo = fields.get("echo", False) is True
        if (best := fields.get("best_of")) is not None and best != fields.get("n", 1):
            refuse("best_of", f"{best!r:.20}: all answers are returned here; send `n`, and choose", unsupported=True)
        self.chat = {name: value for name, value in fields.items() if name in _SAME or name == "model"}
        self.chat["max_tokens"] = fields.get("max_tokens", 16)  # the API's default
        self._logprobs = fields.get("logprobs")
        if self._logprobs is not None:
            if type(self._logprobs) is not int or not 0 <= self._logprobs <= _MOST_LOGPROBS:
                refuse("logprobs", f"must be a number from 0 to {_MOST_LOGPROBS}, not {self._logprobs!r:.50}")
            if self._echo:
                refuse(
                    "echo",
                    "log-probabilities of the prompt are not offered: leave `echo` or `logprobs` out",
                    unsupported=True,
                )
            self.chat |= {"logprobs": True, "top_logprobs": self._logprobs}
        if self._echo and not isinstance(self.prompt, str):
            refuse("echo", "the text of token ids is not known here: decode them in the client", unsupported=True)
        self.note: dict[str, Any] = {"api": "completions"}
        self._offset = 0
        """Characters of the answer so far."""
        self._is_first_chunk = True

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """A chat completion as a text completion."""
        choices = []
        for choice in answer["choices"]:
            self._offset = len(self._head)
            text = self._head + (choice["message"].get("content") or "")
            choices.append(self._choice(choice, text, answer))
        return {**self._fields(answer), "choices": choices, "usage": answer.get("usage")}

    def chunk(self, chunk: dict[str, Any]) -> Iterator[bytes]:
        """The event of a chunk; none for one that the client gets nothing of."""
        choices = []
        for choice in chunk.get("choices") or []:
            text = (choice.get("delta") or {}).get("content") or ""
            if self._is_first_chunk:
                text, self._offset, self._is_first_chunk = self._head + text, len(self._head), False
            choices.append(self._choice(choice, text, chunk))
        usage = {"usage": chunk.get("usage")} if self._usage_wanted else {}
        if choices or usage.get("usage"):
            yield sse({**self._fields(chunk), "choices": choices, **usage})

    @property
    def _head(self) -> str:
        """The prompt, where the client wants it repeated."""
        return self.prompt if self._echo and isinstance(self.prompt, str) else ""

    def _fields(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": answer_id(answer["id"], TEXT),
            "object": "text_completion",
            "created": answer.get("created"),
            "model": answer["model"],
            "system_fingerprint": answer.get("system_fingerprint"),
        }

    def _choice(self, choice: Mapping[str, Any], text: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        text_choice = {
            "index": choice["index"],
            "text": text,
            "logprobs": self._text_logprobs((choice.get("logprobs") or {}).get("content")),
            "finish_reason": choice.get("finish_reason"),
        }
        if "token_ids" in choice:
            text_choice["token_ids"] = choice["token_ids"]
        if self.chat.get("return_token_ids") and (prompt := answer.get("prompt_token_ids")) is not None:
            text_choice["prompt_token_ids"] = prompt
        return text_choice

    def _text_logprobs(self, entries: list[dict[str, Any]] | None) -> dict[str, Any] | None:
        """Log-probabilities in the form of this API; None if the client does not want them."""
        if self._logprobs is None or entries is None:
            return None
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry["token"])
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [
                {top["token"]: top["logprob"] for top in entry["top_logprobs"]} or None for entry in entries
            ],
            "text_offset": offsets,
        }


def _prompt(value: object) -> str | list[int]:
    """Reads `prompt`: a text, a list of token ids, or a list of one of these."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(token) is int and 0 <= token < 2**31 for token in value):
        return value
    if isinstance(value, list) and all(isinstance(prompt, str | list) for prompt in value) and len(value) > 1:
        refuse("prompt", f"{len(value)} prompts: send one request for each", unsupported=True)
    refuse("prompt", f"must be a text, or a list of token ids, and not empty: not {value!r:.100}")


COMPLETIONS = ClientAPI(lambda body, earlier: TextExchange(body), most_values=MOST_VALUES)
"""`/v1/completions`. Its prompt may be token ids."""
