"""What steps with a teacher need of engines: another vLLM's scores, prompts with hints. Which teachers may be named."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from testbed.engine_app import END, UNIFORM, make_app
from tests.support.homes.job_service import service_of
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TrainerServer
from tests.support.training.worker import completion
from trainer_server.common import Home
from trainer_server.engines.base import TeacherLost
from trainer_server.engines.vllm import teacher
from trainer_server.engines.vllm.command import free_port
from trainer_server.engines.vllm.dialect import VLLMClient
from trainer_server.jobs.queue import JobQueue
from trainer_server.jobs.teaching import Teachers, hinted_prompt
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import (
    Distillation,
    GroupRef,
    GRPOConfig,
    JobStatus,
    StepRequest,
    TrainingError,
    TrajectoryRef,
    Unprocessable,
)


def ids(text: str) -> list[int]:
    return list(map(ord, text))


SAMPLED = completion("c0", ids("abc"), prompt_token_ids=ids("question"))


@pytest.fixture
async def engine() -> AsyncIterator[Any]:
    with serving(make_app()) as url:
        client = VLLMClient(url, None, base="base", cpu=True)
        yield client
        await client.close()


def teachers(home: Path, *urls: str, key: str | None = None) -> Teachers:
    store = AdapterStore(Home(home).policies)
    return Teachers(store, PolicyNames(store), urls=urls, api_key=key)


async def ledger_of(home: Path, *completions: Any) -> SQLiteLedger:
    ledger = SQLiteLedger(Home(home).ledger)
    await ledger.add(*completions)
    return ledger


def request(teacher: str, *completions: str, **distill: Any) -> StepRequest:
    refs = [TrajectoryRef(id="t", reward=None, completions=list(completions or ("c0",)))]
    config = GRPOConfig(distill=Distillation(teacher=teacher, rewards=False, **distill))
    return StepRequest(groups=[GroupRef(scenario_id="s", trajectories=refs)], config=config)


async def test_another_vllm_scores_the_sampled_tokens(tmp_path: Path, engine: Any) -> None:
    app = make_app(base="big", key="secret")
    app.state.engine["likes"] = "b"
    with serving(app) as url:
        ledger = await ledger_of(tmp_path, SAMPLED)
        taught = await teachers(tmp_path, url, key="secret").teaching(request(f"{url}/v1"), engine, ledger)
    assert taught.scores == {"c0": [UNIFORM, UNIFORM + 1, UNIFORM]}
    (asked,) = (body for body in app.state.engine["requests"] if "prompt_logprobs" in body)
    assert (asked["model"], asked["prompt"]) == ("big", ids("questionabc"))


async def test_what_the_teacher_refuses_is_missing_and_said(
    tmp_path: Path, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(base="big")
    with serving(app) as url:
        long = completion("c1", ids("abc"), prompt_token_ids=ids("x" * 3000))
        ledger = await ledger_of(tmp_path, SAMPLED, long)
        taught = await teachers(tmp_path, url).teaching(request(url, "c0", "c1"), engine, ledger)
        assert list(taught.scores) == ["c0"]
        assert "scored 1 of 2 completions, the others are not trained: This model's maximum context" in caplog.text
        with pytest.raises(TrainingError, match="scored no completion: This model's maximum context"):
            await teachers(tmp_path, url).teaching(request(url, "c1"), engine, ledger)


async def test_a_teacher_with_another_tokenizer_is_refused(tmp_path: Path, engine: Any) -> None:
    app = make_app(base="big")
    app.state.engine["shift"] = 1
    with serving(app) as url:
        ledger = await ledger_of(tmp_path, SAMPLED)
        with pytest.raises(TrainingError, match=r"the teacher big at .* has another tokenizer: 'The quick brown"):
            await teachers(tmp_path, url).teaching(request(url), engine, ledger)


async def test_a_teacher_that_is_away_or_refuses_the_key_says_so(tmp_path: Path, engine: Any) -> None:
    ledger = await ledger_of(tmp_path, SAMPLED)
    away = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(TeacherLost):
        await teachers(tmp_path, away).teaching(request(away), engine, ledger)
    refuses = pytest.raises(TrainingError, match="refuses the key: set ART_TEACHER_API_KEY")
    with serving(make_app(base="big", key="secret")) as url, refuses:
        await teachers(tmp_path, url).teaching(request(url), engine, ledger)


async def test_a_teacher_that_never_answers_counts_as_lost(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its front end lives and its engine hangs: no connection ends."""
    monkeypatch.setattr(teacher, "ANSWER_WITHIN", 0.05)

    async def never(*_: Any) -> list[float | None]:
        await asyncio.Future()
        return []

    monkeypatch.setattr(VLLMClient, "prompt_logprobs", never)
    with serving(make_app(base="big")) as url:
        ledger = await ledger_of(tmp_path, SAMPLED)
        with pytest.raises(TeacherLost, match=r"did not score c0 within 0\.05 s"):
            await teachers(tmp_path, url).teaching(request(url), engine, ledger)


async def test_a_step_whose_teacher_stays_away_fails(tmp_path: Path, base_model: Path, engine: Any) -> None:
    home = Home(tmp_path)
    engine.ready = True

    async def ready(_: float) -> None:
        pass

    engine.wait_ready = ready
    away = f"http://127.0.0.1:{free_port()}"
    board = JobQueue(home.jobs)
    service = service_of(board, home, base_model, engine, teacher_urls=(away,), engine_wait=0.0)
    job = await service.train("p", request(away))
    assert not board.ready(job.id)
    await service.runner.prepare(job.id)
    trained = board.training_outcome(job.id)
    assert trained is not None
    assert "the teacher did not answer for 0 s" in str(trained.error)
    assert job.status == JobStatus.queued


@pytest.mark.parametrize(
    ("teacher", "why"),
    [
        ("nobody", "there is no policy 'nobody' on this server; there are: base"),
        (
            "http://169.254.169.254",
            r"the server may not ask this address; .*--teacher-url.*\(now: http://teacher:8000\)",
        ),
        ("http://teacher:8000.evil.example", "may not ask this address"),
        ("http://teacher:8000@evil.example", "may not ask this address"),
    ],
)
def test_which_teachers_may_be_named(tmp_path: Path, teacher: str, why: str) -> None:
    asked = teachers(tmp_path, "http://teacher:8000/v1/")
    with pytest.raises(Unprocessable, match=why):
        asked.check(GRPOConfig(distill=teacher))  # type: ignore[arg-type]
    for known in ("base", "http://teacher:8000", "http://teacher:8000/v1"):
        asked.check(GRPOConfig(distill=known))  # type: ignore[arg-type]


def test_the_server_refuses_an_unknown_teacher_before_the_job(server: TrainerServer) -> None:
    with server.http() as http:
        for teacher in ("nobody", "agent@77", "http://127.0.0.1:1"):
            body = request(teacher).model_dump(mode="json")
            answer = http.post("/api/policies/agent/steps", json=body)
            assert answer.status_code == 422
            assert f"distill.teacher='{teacher}'" in answer.text


MESSAGES = [
    {"role": "user", "content": "say it"},
    {"role": "assistant", "content": "it"},
    {"role": "user", "content": "?"},
]


async def test_the_hint_enters_the_recorded_prompt_which_keeps_the_sampled_tokens(engine: Any) -> None:
    """The recorded prompt has other tokens for the earlier answer than the template would write (IT for it)."""
    recorded = ids(f"say itIT{END}?")
    one = completion("c0", ids("x"), prompt_token_ids=recorded, request={"messages": MESSAGES})
    assert await hinted_prompt(engine, one, "Hint. ") == ids(f"Hint. say itIT{END}?")
    system = {"role": "system", "content": "You say."}
    one = completion(
        "c0", ids("x"), prompt_token_ids=ids("You say.") + recorded, request={"messages": [system, *MESSAGES]}
    )
    prompt = await hinted_prompt(engine, one, "Hint.")
    assert prompt is not None
    assert await engine.detokenize(prompt) == f"You say.\n\nHint.say itIT{END}?"


async def test_a_prompt_that_is_not_what_the_template_renders_gets_no_hint(
    engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    system = {"role": "system", "content": "You say."}
    other = completion("c0", ids("x"), prompt_token_ids=ids("I say."), request={"messages": [system, *MESSAGES]})
    assert await hinted_prompt(engine, other, "Hint.") is None
    assert await hinted_prompt(engine, completion("c0", ids("x"), request={"prompt": "text"}), "Hint.") is None
    assert (
        await hinted_prompt(engine, completion("c0", ids("x"), request={"messages": MESSAGES}), "unrenderable") is None
    )
