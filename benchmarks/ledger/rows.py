"""What is recorded."""

from __future__ import annotations

import random
import time
import uuid

from trainer_server.wire import Completion, CompletionStatus, Sampling

DAYS = 60
OF_A_ROLLOUT = 5
SMALL = "small"
"""A policy with a hundredth of the completions."""


class Rows:
    """Completions as the gateway records them: the same texts, and other tokens.

    Args:
        count: How many there will be.
        tokens: Sampled tokens of each.
        prompt: Tokens of the prompt of each.
    """

    def __init__(self, count: int, tokens: int, prompt: int) -> None:
        self._rng = random.Random(0)
        self._began, self._apart = time.time() - DAYS * 86400, DAYS * 86400 / count
        self._count = count
        self._rollout = ""
        self._sampled = [
            {
                "prompt_token_ids": self._tokens(prompt),
                "token_ids": self._tokens(tokens),
                "logprobs": [-self._rng.expovariate(2.0) for _ in range(tokens)],
            }
            for _ in range(64)
        ]
        words = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
        self._like = Completion(
            id="", created=0.0, server_id=uuid.uuid4().hex, base_model="HuggingFaceTB/SmolLM2-135M-Instruct",
            tokenizer=uuid.uuid4().hex * 2, policy="agent", version=0, model="agent", status=CompletionStatus.complete,
            finish_reason="stop", sampling=Sampling(max_tokens=1024),
            request={"messages": [{"role": "user", "content": " ".join(self._rng.choices(words, k=prompt * 3 // 4))}]},
            message={"role": "assistant", "content": " ".join(self._rng.choices(words, k=tokens * 3 // 4))},
        )  # fmt: skip

    def row(self, number: int) -> Completion:
        """The completion of a number. Five that follow one another have one rollout; each thousandth row is of another
        version. Rows beyond the count are of now."""
        if number % OF_A_ROLLOUT == 0 or not self._rollout:
            self._rollout = f"ro-{self._rng.getrandbits(64):016x}"
        update = {
            "id": f"chatcmpl-{self._rng.getrandbits(128):032x}",
            "created": time.time() if number >= self._count else self._began + number * self._apart,
            "policy": SMALL if number % 100 == 0 else "agent",
            "version": number // 1000,
            "rollout": self._rollout,
            **self._rng.choice(self._sampled),
        }
        return self._like.model_copy(update=update)

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(49152) for _ in range(count)]
