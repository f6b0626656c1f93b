"""Warm starts: demonstrations to be imitated, and the configuration of supervised fine-tuning (SFT) on them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from trainer_server.wire.bounds import MOST_ROWS, ClosedRecord, ListOf
from trainer_server.wire.steps import LEARNING_RATE, MOST_TOKENS, MOST_UPDATES, TimeLimit, TrajectoryRef, rename_keys
from trainer_server.wire.tool_arguments import arguments_object, complete_calls

MOST_EPOCHS = 10_000
ROLES = ("system", "developer", "user", "assistant", "tool")


def _named_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for at, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict) or not function.get("name"):
            raise ValueError(f'tool {at} (counted from 0) must be {{"type": "function", "function": {{"name": …}}}}')
    return tools


Tools = Annotated[ListOf[dict[str, Any]], AfterValidator(_named_tools)]
"""Tools that the model may call, in the format of a chat request."""


class SFTConfig(ClosedRecord):
    """Configuration of one warm start. Names follow TRL's `SFTConfig`; `learning_rate` is accepted for `lr`."""

    model_config = ConfigDict(allow_inf_nan=False)

    lr: float = Field(default=2e-4, gt=0, description="peak learning rate of AdamW")
    lr_updates: int | None = Field(default=None, ge=1, le=MOST_UPDATES)
    """The number of updates that `lr` is meant for. With another number, as many as `max_seconds` leaves time for, the
    peak is lr * sqrt(lr_updates / updates), and at most twice `lr`. None: the peak is `lr`."""
    num_train_epochs: int = Field(default=3, ge=1, le=MOST_EPOCHS, description="passes over the rows")
    per_device_train_batch_size: int = Field(default=8, ge=1, le=MOST_ROWS)
    """Demonstrations of an optimizer update. What they have in common is computed once for each update. Trainer
    processes divide them: an update has as many with several processes as with one."""
    gradient_accumulation_steps: int = Field(default=1, ge=1, le=MOST_ROWS)
    """Factor on `per_device_train_batch_size`, for configurations written for TRL. How much is computed at once is
    `token_budget`."""
    token_budget: int = Field(default=8192, gt=0, le=MOST_TOKENS)
    """Unique tokens that are computed at once, as in GRPOConfig. A longer demonstration is computed alone."""
    shuffle_dataset: bool = True
    """Whether each pass takes the rows in a random order. False: in the order in which they were given, so that what is
    easy can come first."""
    fit_to_time: bool = False
    """Whether rows for which `max_seconds` leaves no time are left out, the last ones first. Then no row comes twice
    before all have come once, the first updates take the first rows, and what they took tells how many of the others
    are imitated, these in a random order. Held-out losses are measured from the second pass on. The time for
    rendering counts too. Needs `max_seconds`."""
    detach_prefix: bool | Literal["context"] = False
    """Whether no gradient goes through the keys and values of what all demonstrations that are computed at once begin
    with, such as the tools and the system prompt: these are computed once, without a backward pass. An update then
    takes less time and memory, the more the longer that beginning is. It is an approximation. On CPUs alone; on GPUs it
    has no effect, and the metric `tokens_detached` is 0. "context": the same of all tokens but those that predict a
    token with a loss, requests and results too; what all demonstrations of an agent begin with is then computed once
    in eight updates. A model with recurrent layers does as for True."""
    max_length: int = Field(default=4096, ge=2, le=MOST_TOKENS)
    """Largest number of tokens in a row, prompt and answer together. A longer answer is skipped and counted as
    `too_long`; it is never cut."""
    max_seconds: float | None = Field(default=None, gt=0, le=366 * 86400)
    """Seconds for training and measuring; None: no limit. The warm start ends before an update that would take longer,
    after one update at least, and makes its version. The learning rate then falls by the time that has passed, where
    that is ahead of the updates. Unlike `time_limit` of the request, which fails the job."""
    patience: int | None = Field(default=2, ge=1, le=MOST_UPDATES)
    """The warm start ends after this many measurements of the held-out loss without a new least one; None: never. Has
    no effect without validation."""
    lr_scheduler_type: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    warmup_steps: float = Field(default=0.05, ge=0, le=MOST_UPDATES)
    """Updates until the peak learning rate; below 1: a fraction of all updates."""
    weight_decay: float = Field(default=0.0, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    adam_epsilon: float = Field(default=1e-8, gt=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**32, description="order of the rows")
    train_on: Literal["all", "last"] = "all"
    """Which answers of a conversation are imitated: every assistant message, or only the last one."""
    min_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Only trajectories with at least this reward are imitated; None: all. Conversations have no reward and are always
    imitated."""

    @model_validator(mode="after")
    def _fits_to_a_time(self) -> Self:
        if self.fit_to_time and self.max_seconds is None:
            raise ValueError("fit_to_time=True needs the time that there is: set max_seconds")
        return self

    @model_validator(mode="before")
    @classmethod
    def _as_trl_has_it(cls, data: Any) -> Any:
        return rename_keys(data, LEARNING_RATE) if isinstance(data, dict) else data


class Conversation(ClosedRecord):
    """One demonstration, as in a line of OpenAI's fine-tuning format.

    A `weight` of 0 on an assistant message makes it context that is not imitated.
    """

    messages: ListOf[dict[str, Any]] = Field(min_length=1)
    """Messages in OpenAI's format."""
    tools: Tools | None = None
    """Tools that the model may call, in the format of a chat request. Use the tools that the graph will send."""
    parallel_tool_calls: bool | None = None
    """Part of OpenAI's format. It has no effect here."""
    chat_template_kwargs: dict[str, Any] | None = None
    """As in a chat request. Use the values that the graph will send."""

    @field_validator("messages")
    @classmethod
    def _well_formed(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for at, message in enumerate(messages):
            if problem := _problem(message, first=at == 0):
                raise ValueError(f"message {at} (counted from 0): {problem}")
        return complete_calls(messages)

    def answers(self, train_on: Literal["all", "last"]) -> list[int]:
        """Indices of the assistant messages that are imitated.

        Args:
            train_on: See SFTConfig.
        """
        indices = [
            index
            for index, message in enumerate(self.messages)
            if message["role"] == "assistant" and message.get("weight") != 0
        ]
        return indices if train_on == "all" else indices[-1:]


class SFTRequest(ClosedRecord):
    """Body of `POST /api/policies/{name}/sft`: at least one conversation or trajectory to imitate."""

    conversations: ListOf[Conversation] = Field(default_factory=list, max_length=MOST_ROWS)
    """Conversations, which the server renders with the engine's chat template."""
    tools: Tools | None = None
    """Tools of the conversations that have no `tools`, those of the validation too: what all have in common is sent
    once. A conversation without any then says `"tools": []`."""
    trajectories: ListOf[TrajectoryRef] = Field(default_factory=list, max_length=MOST_ROWS)
    """Trajectories whose completions are imitated with the tokens that were sampled. They may come from any policy, at
    any temperature."""
    validation: ListOf[Conversation] = Field(default_factory=list, max_length=MOST_ROWS)
    """Conversations that are measured and never trained. Their loss is taken before training, after each epoch, and
    within long epochs. The version is made of the weights that had the least."""
    validation_trajectories: ListOf[TrajectoryRef] = Field(default_factory=list)
    """Trajectories that are measured like those conversations."""
    config: SFTConfig = Field(default_factory=SFTConfig)
    idempotency_key: str | None = Field(default=None, max_length=200)
    """As in StepRequest."""
    time_limit: TimeLimit = None
    """As in StepRequest. The rendering of the conversations does not count."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.conversations and not self.trajectories:
            raise ValueError("there is nothing to imitate: give `conversations`, `trajectories`, or both")
        return self


def _problem(message: dict[str, Any], *, first: bool) -> str | None:
    """What is wrong with a message and what would be right; None: nothing."""
    role = message.get("role")
    if role not in ROLES:
        return f"role {role!r} is none of {', '.join(ROLES)}"
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            return 'a list as content must hold text parts: {"type": "text", "text": "…"}'
    elif content is not None and not isinstance(content, str):
        return f"content must be a text, not {type(content).__name__}"
    if role != "assistant":
        return None if content is not None else f"a {role} message needs content"
    if first:
        return "an answer needs something before it that it answers: put a user message first"
    if message.get("weight") not in (None, 0, 1):
        return f"weight must be 0 (context) or 1 (imitated), not {message['weight']!r}"
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        return "tool_calls must be a list"
    return next((problem for call in calls or () if (problem := _call_problem(call))), None)


def _call_problem(call: object) -> str | None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        return 'a tool call must be {"id": …, "type": "function", "function": {"name": …, "arguments": "{…}"}}'
    arguments = function.get("arguments")
    if arguments_object(arguments) is None:
        return f"arguments of {function['name']} must be a JSON object written as a text, not {arguments!r:.80}"
    return None
