"""Quotas: what a token may ask of the engines, and when it may ask again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.clock import Clock
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.gateway.errors import APIError
from trainer_server.server.access.quotas import Quotas
from trainer_server.server.access.tokens import Scope, Token, TokenRepository
from trainer_server.wire import Completion

CHAT = {"model": "agent", "messages": [{"role": "user", "content": "say hello"}], "max_tokens": 20}
"""9 tokens of prompt, 5 of answer."""


def token(**limits: int) -> Token:
    return Token(name="alice", scope=Scope.rollout, digest="d", created=0.0, **limits)  # type: ignore[arg-type]


def completion(prompt: int, sampled: int) -> Completion:
    return Completion.model_construct(prompt_token_ids=[1] * prompt, token_ids=[1] * sampled)


def test_requests_in_flight_are_counted_until_they_end() -> None:
    quotas, limited = Quotas(Clock().monotonic), token(requests_in_flight=2)
    with quotas.admit(limited):
        with quotas.admit(limited):
            with pytest.raises(APIError, match="2 requests in flight") as refused, quotas.admit(limited):
                pass
            assert (refused.value.status, refused.value.retry_after) == (429, 1)
        with quotas.admit(limited):
            pass
    with pytest.raises(RuntimeError), quotas.admit(limited):
        raise RuntimeError
    with quotas.admit(limited), quotas.admit(limited):
        pass


def test_tokens_come_back_within_a_minute_and_an_overdraft_is_waited_for() -> None:
    clock = Clock()
    quotas, limited = Quotas(clock.monotonic), token(tokens_per_minute=60)
    with quotas.admit(limited):
        quotas.count_tokens([completion(50, 30), completion(50, 10)])  # two choices of one prompt: 90 tokens
    with pytest.raises(APIError, match="used its 60 tokens") as refused, quotas.admit(limited):
        pass
    assert refused.value.retry_after == 31
    clock.sleep(30)
    with pytest.raises(APIError), quotas.admit(limited):
        pass
    clock.sleep(1)
    with quotas.admit(limited):
        pass
    clock.sleep(1000)
    with quotas.admit(limited):
        quotas.count_tokens([completion(59, 0)])
    with quotas.admit(limited):
        quotas.count_tokens([completion(1, 0)])
    with pytest.raises(APIError), quotas.admit(limited):
        pass


def owned(name: str, owner: str | None, **limits: int) -> Token:
    return Token(name=name, owner=owner, scope=Scope.rollout, digest=name, created=0.0, **limits)  # type: ignore[arg-type]


def test_the_tokens_of_an_owner_are_counted_together_and_each_is_held_to_its_limits() -> None:
    clock = Clock()
    quotas = Quotas(clock.monotonic)
    laptop, cluster = owned("laptop", "ann", requests_in_flight=2), owned("cluster", "ann", tokens_per_minute=60)
    with quotas.admit(cluster), quotas.admit(laptop):
        with pytest.raises(APIError, match=r"2 requests in flight.*those of 'ann' counted together"):
            quotas.admit(laptop).__enter__()
        with quotas.admit(owned("laptop2", "bob", requests_in_flight=2)), quotas.admit(cluster):
            pass
    with quotas.admit(laptop):
        quotas.count_tokens([completion(50, 40)])
    with pytest.raises(APIError, match="'cluster' has used its 60 tokens"):
        quotas.admit(cluster).__enter__()
    with quotas.admit(laptop), quotas.admit(owned("other", "bob", tokens_per_minute=60)):
        pass
    clock.sleep(31)
    with quotas.admit(cluster):
        pass


def test_answers_of_others_are_not_counted() -> None:
    quotas, limited = Quotas(Clock().monotonic), token(tokens_per_minute=1)
    quotas.count_tokens([completion(100, 100)])
    with quotas.admit(token()):
        quotas.count_tokens([completion(100, 100)])
    with quotas.admit(limited):
        pass


@pytest.fixture
def limited(server: TrainerServer) -> Iterator[httpx.Client]:
    """A client whose token has 20 tokens a minute."""
    book = TokenRepository(server.home)
    secret = book.create("limited", Scope.rollout, tokens_per_minute=20)
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {secret}"}, timeout=120) as http:
        yield http
    book.revoke("limited")


@pytest.mark.parametrize("options", [{}, {"stream": True}])
@pytest.mark.parametrize("path", ["/v1", "/rollouts/metered/v1"])
def test_the_gateway_counts_the_tokens_of_answers_and_streams(
    limited: httpx.Client, path: str, options: dict[str, Any]
) -> None:
    statuses = [limited.post(f"{path}/chat/completions", json=CHAT | options).status_code for _ in range(3)]
    assert statuses == [200, 200, 429], "14 of 20 tokens, 28, none left"
    answer = limited.post("/v1/messages", json=CHAT)
    assert int(answer.headers["Retry-After"]) > 20
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert limited.get("/api/policies").status_code == 200, "only model requests are counted"
