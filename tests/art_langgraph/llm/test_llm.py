"""Typed answers of a model over a real socket: what is asked, what is understood, what becomes of each fault."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel, SecretStr

from art_langgraph import LLM, ChatART, LLMError, rollout
from art_langgraph.llm.cache import AnswerCache
from tests.support.patience import PATIENCE
from tests.support.servers.judge_app import Endpoint, Fault, Step, endpoint
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError

pytestmark = pytest.mark.slow

ASKED = [{"role": "system", "content": "You count."}, {"role": "user", "content": "How many?"}]


class Count(BaseModel):
    number: int
    why: str


class Loose(BaseModel):
    arguments: dict[str, Any]


GOOD = json.dumps({"number": 3, "why": "so"})


def llm(at: Endpoint, **options: Any) -> LLM:
    settings: dict[str, Any] = {"backoff": 0.01, "timeout": 30.0, "cache": None, **options}
    return LLM("judge", base_url=at.url, api_key="secret", **settings)


def chat_llm(at: Endpoint, **options: Any) -> LLM:
    """The same endpoint, asked through a LangChain chat model."""
    settings: dict[str, Any] = {"backoff": 0.01, "timeout": 30.0, "cache": None, **options}
    return LLM(ChatOpenAI(model="judge", base_url=at.url, api_key=SecretStr("secret"), max_retries=0), **settings)


Make = Callable[..., LLM]
however_asked = pytest.mark.parametrize("make", [llm, chat_llm], ids=["litellm", "langchain"])


async def test_an_answer_is_a_value_of_the_model_that_was_asked_for() -> None:
    with endpoint(GOOD) as at:
        model = llm(at, temperature=0.5, max_tokens=99)
        assert await model.ask(ASKED, Count) == Count(number=3, why="so")
    (body,) = at.requests
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("judge", 0.5, 99)
    assert body["messages"] == ASKED
    wanted = body["response_format"]["json_schema"]
    assert wanted["strict"] is True
    assert wanted["schema"]["additionalProperties"] is False
    assert at.keys == ["secret"]
    assert (model.usage.calls, model.usage.retries, model.usage.prompt_tokens) == (1, 0, 100)
    assert model.usage.cost is None  # nobody knows the price of a local model


async def test_the_price_of_a_known_model_is_counted() -> None:
    with endpoint(GOOD) as at:
        model = LLM("openai/gpt-4o-mini", base_url=at.url, cache=None)
        await model.ask(ASKED, Count)
        await model.ask(ASKED, Count)
    assert model.usage.cost == pytest.approx(2 * 2.7e-5)
    assert "2 calls (0 retries, 0 from the cache), 200 + 40 tokens, 0.0001 USD" in str(model.usage)


async def test_a_key_of_the_environment_never_reaches_an_address_that_was_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-precious")
    with endpoint(GOOD) as at:
        await LLM("openai/gpt-4o-mini", base_url=at.url, cache=None).ask(ASKED, Count)
    assert at.keys == ["none"]


async def test_a_schema_with_open_objects_is_not_strict() -> None:
    with endpoint('{"arguments": {"city": "Oslo"}}') as at:
        assert (await llm(at).ask(ASKED, Loose)).arguments == {"city": "Oslo"}
    assert at.requests[0]["response_format"]["json_schema"]["strict"] is False


@however_asked
@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{GOOD}\n```",
        f"Here you are: {GOOD}. Anything else?",
        f"<think>{{maybe 4}}</think>{GOOD}",
        f"I weigh {{accuracy}} first.\n{GOOD}\nIt was {{close}}.",
    ],
    ids=["fenced", "between words", "after thinking", "between braces"],
)
async def test_json_between_other_words_is_found(make: Make, text: str) -> None:
    with endpoint(text) as at:
        model = make(at)
        assert (await model.ask(ASKED, Count)).number == 3
    assert model.usage.retries == 0


@however_asked
async def test_the_way_of_asking_falls_back_and_is_remembered(make: Make) -> None:
    def no_schema(body: dict[str, Any]) -> str | Fault:
        return Fault(400, "response_format is not supported") if "response_format" in body else GOOD

    def text_only(body: dict[str, Any]) -> str | Fault:
        return Fault(400, "tools are not supported") if "tools" in body else no_schema(body)

    with endpoint(no_schema) as at:
        assert (await make(at, retries=0).ask(ASKED, Count)).number == 3
        assert [("tools" in one, "response_format" in one) for one in at.requests] == [(False, True), (True, False)]
        await make(at).ask(ASKED, Count)  # another object, the same endpoint
        assert len(at.requests) == 3
    with endpoint(text_only) as at:
        assert (await make(at, retries=0).ask(ASKED, Count)).number == 3
        assert len(at.requests) == 3
        assert '"number"' in at.requests[-1]["messages"][0]["content"]  # the schema is in the prompt


@however_asked
async def test_the_model_is_told_what_was_wrong(make: Make) -> None:
    with endpoint('{"number": "many", "why": "so"}', GOOD) as at:
        model = make(at)
        assert (await model.ask(ASKED, Count)).number == 3
    answer, complaint = at.requests[1]["messages"][-2:]
    assert (answer["role"], answer["content"]) == ("assistant", '{"number": "many", "why": "so"}')
    assert "number: Input should be a valid integer" in complaint["content"]
    assert (model.usage.calls, model.usage.retries) == (2, 1)


@however_asked
async def test_a_value_that_fails_its_check_is_asked_for_again(make: Make) -> None:
    def even(found: Count) -> None:
        if found.number % 2:
            raise ValueError(f"{found.number} is odd")

    with endpoint(GOOD, GOOD.replace("3", "4")) as at:
        assert (await make(at).ask(ASKED, Count, check=even)).number == 4
    assert "3 is odd" in at.requests[1]["messages"][-1]["content"]


@however_asked
async def test_a_model_that_never_answers_well_is_asked_in_every_way_and_then_given_up(make: Make) -> None:
    with endpoint("no idea") as at:
        model = make(at)
        with pytest.raises(LLMError, match=r"malformed after 5 requests: Invalid JSON.*'no idea'") as caught:
            await model.ask(ASKED, Count)
    assert caught.value.kind == "malformed"
    ways = ["schema" if "response_format" in one else "tool" if "tools" in one else "text" for one in at.requests]
    assert ways == ["schema", "schema", "tool", "tool", "text"]


@however_asked
@pytest.mark.parametrize(
    ("fault", "kind", "requests"),
    [
        (Fault(401, "bad key"), "auth", 1),
        (Fault(403, "not yours"), "auth", 1),
        (Fault(404, "no such model"), "missing", 1),
        (Fault(402, "pay first"), "quota", 1),
        (Fault(429, "You exceeded your current quota", code="insufficient_quota"), "quota", 1),
        (Fault(refusal="I cannot help with that"), "refused", 1),
        (Fault(finish_reason="content_filter"), "refused", 1),
        (Fault(400, "maximum context length is 2000 tokens", code="context_length_exceeded"), "too_long", 1),
        (Fault(400, "no"), "bad_request", 3),  # once in each way of asking
        (Fault(500, "boom"), "server", 3),
        (Fault(503, "busy"), "server", 3),
        (Fault(429, "slow down"), "rate_limit", 3),
        (Fault(body=b"<html>not json</html>"), "server", 3),
        (Fault(body=b'{"choices": []}'), "server", 3),
        (Fault(message=GOOD[:9], finish_reason="length"), "malformed", 3),
    ],
    ids=lambda value: value.message[:20] or value.refusal or value.finish_reason if isinstance(value, Fault) else None,
)
async def test_what_lasts_is_an_error_of_its_kind(make: Make, fault: Fault, kind: str, requests: int) -> None:
    with endpoint(fault) as at:
        model = make(at, retries=2)
        with pytest.raises(LLMError, match=f"judge: {kind}") as caught:
            await model.ask(ASKED, Count)
    assert caught.value.kind == kind
    assert len(at.requests) == model.usage.calls == requests


async def test_without_a_key_nobody_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    model = LLM("openai/gpt-4.1-mini")
    with pytest.raises(LLMError, match=r"gpt-4.1-mini: auth: .*OPENAI_API_KEY.*Remedy: check the key") as caught:
        await model.ask(ASKED, Count)
    assert caught.value.kind == "auth"


@however_asked
@pytest.mark.parametrize("step", [Fault(500), Fault(502), Fault(503), Fault(529), Fault(429), Fault(body=b"{")])
async def test_what_passes_is_asked_again(make: Make, step: Step) -> None:
    with endpoint(step, step, GOOD) as at:
        model = make(at)
        assert (await model.ask(ASKED, Count)).number == 3
    assert (model.usage.calls, model.usage.retries) == (3, 2)


@however_asked
async def test_retry_after_is_honoured(make: Make) -> None:
    with endpoint(Fault(429, "slow down", headers={"Retry-After": "0.4"}), GOOD) as at:
        started = time.monotonic()
        await make(at).ask(ASKED, Count)
        assert time.monotonic() - started >= 0.4


@however_asked
@pytest.mark.parametrize("when", ["86400", formatdate(time.time() + 86400, usegmt=True)], ids=["seconds", "date"])
async def test_a_retry_after_beyond_the_longest_wait_is_an_error_at_once(make: Make, when: str) -> None:
    tomorrow = Fault(429, "come tomorrow", headers={"Retry-After": when})
    with endpoint(tomorrow) as at, pytest.raises(LLMError, match=r"asks to wait 8\d{4} s, longer than") as caught:
        await make(at).ask(ASKED, Count)
    assert (caught.value.kind, len(at.requests)) == ("rate_limit", 1)


@however_asked
async def test_an_endpoint_that_hangs_is_given_up_within_the_timeout(make: Make) -> None:
    with endpoint(Fault(sleep=30.0)) as at:
        with pytest.raises(LLMError, match=r"timeout after 2 requests: .*0.3") as caught:
            await make(at, timeout=0.3, retries=1).ask(ASKED, Count)
        await _until(lambda: at.dropped == 2)
    assert caught.value.kind == "timeout"


@however_asked
async def test_an_endpoint_that_is_not_there_is_unreachable(make: Make) -> None:
    with endpoint(GOOD) as at:
        pass
    with pytest.raises(LLMError, match="unreachable after 2 requests") as caught:
        await make(at, retries=1).ask(ASKED, Count)
    assert caught.value.kind == "unreachable"


@however_asked
async def test_cancelling_a_question_drops_the_connection(make: Make) -> None:
    with endpoint(Fault(sleep=30.0)) as at:
        asking = asyncio.create_task(make(at).ask(ASKED, Count))
        await _until(lambda: len(at.requests) == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await _until(lambda: at.dropped == 1)


async def test_no_more_than_max_concurrency_are_asked_at_once() -> None:
    def slow(_body: dict[str, Any]) -> Fault:
        return Fault(message=GOOD, sleep=0.1)

    with endpoint(slow) as at:
        model = llm(at, max_concurrency=2)
        await asyncio.gather(*(model.ask(ASKED, Count, sample=one) for one in range(6)))
    assert at.most_at_once == 2


async def test_an_answer_is_paid_for_once(tmp_path: Path) -> None:
    file = tmp_path / "answers.sqlite"
    with endpoint(GOOD) as at:
        await llm(at, cache=file).ask(ASKED, Count)
        again = llm(at, cache=file)
        assert (await again.ask(ASKED, Count)).number == 3
        assert (again.usage.calls, again.usage.cached, again.usage.cost) == (0, 1, 0.0)
        await again.ask(ASKED, Count, sample=1)
        await llm(at, cache=file, temperature=0.7).ask(ASKED, Count)
    assert len(at.requests) == 3


async def test_an_answer_of_a_chat_model_is_paid_for_once_and_its_settings_count(tmp_path: Path) -> None:
    with endpoint(GOOD) as at:
        for temperature in (0.0, 0.0, 0.7):
            chat = ChatOpenAI(model="judge", base_url=at.url, api_key=SecretStr("secret"), temperature=temperature)
            await LLM(chat, cache=tmp_path / "answers.sqlite").ask(ASKED, Count)
    assert len(at.requests) == 2


async def test_a_kept_answer_that_fails_its_check_is_asked_for_anew(tmp_path: Path) -> None:
    def never_three(found: Count) -> None:
        if found.number == 3:
            raise ValueError("not three")

    with endpoint(GOOD, GOOD.replace("3", "4")) as at:
        model = llm(at, cache=tmp_path / "answers.sqlite")
        await model.ask(ASKED, Count)
        assert (await model.ask(ASKED, Count, check=never_three)).number == 4


def test_the_cache_is_one_for_all_homes_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    cache = AnswerCache()
    assert stat.S_IMODE(cache.path.stat().st_mode) == 0o600
    cache.put("digest", "{}")
    assert cache.path == tmp_path / "cache" / "llm.sqlite"
    assert AnswerCache().get("digest") == "{}"
    assert cache.get("another") is None


def test_one_llm_serves_several_event_loops() -> None:
    with endpoint(GOOD) as at:
        model = llm(at)
        for one in range(3):
            asyncio.run(model.ask(ASKED, Count, sample=one))
        assert model.usage.calls == 3


async def test_an_unknown_provider_is_named_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"'nobody/model'.*provider/name.*base_url"):
        await LLM("nobody/model", cache=None).ask(ASKED, Count)


async def test_our_own_server_answers(connected: TrainerServer, tmp_path: Path) -> None:
    asked = [{"role": "user", "content": f"say {GOOD}"}]
    for name in ("art/agent", "art/agent@0", "art/base"):
        model = LLM(name, max_tokens=100, cache=tmp_path / "answers.sqlite")
        assert (await model.ask(asked, Count)).number == 3
        assert model.usage.cost == 0.0
    assert connected.engine["requests"][-1]["model"] == "base"
    kept = {one: LLM(one, max_tokens=100, cache=tmp_path / "answers.sqlite") for one in ("art/agent", "art/agent@0")}
    for model in kept.values():
        await model.ask(asked, Count)
    # The newest version changes under its name: what it said is no answer of the next one.
    assert [one.usage.cached for one in kept.values()] == [0, 1]


async def test_a_version_that_does_not_exist_is_missing(connected: TrainerServer) -> None:
    with pytest.raises(LLMError, match="no version '99'") as caught:
        await LLM("art/agent@99", cache=None).ask(ASKED, Count)
    assert caught.value.kind == "missing"


async def test_what_is_asked_inside_a_rollout_is_not_part_of_it(connected: TrainerServer) -> None:
    judge, model = LLM("art/agent", max_tokens=100, cache=None), ChatART(policy="agent", max_tokens=50)

    async def node(state: MessagesState) -> dict[str, Any]:
        await judge.ask([{"role": "user", "content": f"say {GOOD}"}], Count)
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    found = await rollout(graph, "say hello")
    assert judge.usage.calls == 1
    assert [call.message for call in found.completions] == [{"role": "assistant", "content": "hello"}]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)
