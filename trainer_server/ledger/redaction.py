"""What is stored of texts under `serve --redact`: what the user's function makes of them.

Token ids are stored as they are, because training needs them. The model's tokenizer decodes them.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

from trainer_server.common.plugins import Redactor
from trainer_server.wire import Completion, Reward, RolloutSpec, RunTrace

Record = TypeVar("Record", bound=BaseModel)


class Redaction:
    """Redacts records before they are written.

    Args:
        name: `module:function` of a function from text to text; None: records stay as they are.

    Raises:
        ConfigError: There is no such function.
    """

    def __init__(self, name: str | None = None) -> None:
        self._redactor = Redactor("--redact", name) if name else None

    @property
    def on(self) -> bool:
        """Whether texts are redacted."""
        return self._redactor is not None

    def completion(self, completion: Completion) -> Completion:
        """A row of the ledger: the messages of its request and its answer, or the words of its refusal."""
        return self._redact_fields(completion, "request", "message", "error")

    def spec(self, spec: RolloutSpec) -> RolloutSpec:
        """What a rollout is registered with: input and metadata. Hints stay, since they are put into prompts."""
        return self._redact_fields(spec, "scenario", "metadata")

    def reward(self, reward: Reward) -> Reward:
        """A reward: its reason, and the scenario in it."""
        return self._redact_fields(reward, "reason", "scenario")

    def trace(self, trace: RunTrace) -> RunTrace:
        """The report of a client on a run."""
        return self._redact_fields(trace, *RunTrace.model_fields)

    def text(self, text: str) -> str:
        """A text by itself."""
        return str(self._redactor.text(text)) if self._redactor else text

    def _redact_fields(self, record: Record, *fields: str) -> Record:
        if self._redactor is None:
            return record
        values = self._redactor.record(record.model_dump(mode="json", include=set(fields)))
        return type(record).model_validate({**record.model_dump(), **values})
