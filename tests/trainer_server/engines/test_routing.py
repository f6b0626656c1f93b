"""Which engine a new rollout goes to, where a prompt says that others of its scenario began elsewhere."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.support.engines.letters import LettersEngine
from tests.support.patience import PATIENCE
from trainer_server.engines import pool
from trainer_server.engines.pool import Engines
from trainer_server.wire import EngineError


@pytest.fixture
def three() -> list[LettersEngine]:
    engines = [LettersEngine("base") for _ in range(3)]
    for engine in engines:
        engine.ready = True
    return engines


def home(engines: Engines, rollout: str, prompt: str | None = None) -> LettersEngine:
    with engines.route(rollout, sticky=True, prompt=prompt) as engine:
        assert isinstance(engine, LettersEngine)
        return engine


def test_rollouts_with_a_prompt_share_an_engine_and_prompts_are_spread(three: list[LettersEngine]) -> None:
    engines = Engines(three)
    homes = {prompt: {id(home(engines, f"{prompt}{at}", prompt)) for at in range(8)} for prompt in "abc"}
    assert [len(some) for some in homes.values()] == [1, 1, 1]
    assert len(set.union(*homes.values())) == 3
    assert len({id(home(engines, f"no prompt {at}")) for at in range(3)}) == 3


def test_a_busy_engine_spills_its_prompt_and_the_rest_follows(three: list[LettersEngine]) -> None:
    engines, slack = Engines(three), pool._GROUP_SLACK
    with ExitStack() as requests:
        for number in range(2 * slack):
            requests.enter_context(engines.route(f"{number}", sticky=True, prompt="a"))
        assert sorted(engine.busy for engine in three) == [0, slack, slack]
    assert home(engines, "0") is home(engines, f"{slack - 1}")  # what has begun stays where it is
    assert home(engines, "0") is not home(engines, f"{slack}")
    assert home(engines, "new", "a") is home(engines, f"{slack}")


def test_a_prompt_moves_when_its_engine_goes_away(three: list[LettersEngine]) -> None:
    engines = Engines(three)
    first = home(engines, "1", "a")
    first.ready = False
    second = home(engines, "2", "a")
    assert second is not first
    first.ready = True
    assert home(engines, "3", "a") is second
    for engine in three:
        engine.ready = False
    with pytest.raises(EngineError, match="no engine is ready"):
        home(engines, "4", "a")


def test_only_a_new_rollout_of_several_engines_has_a_choice(three: list[LettersEngine]) -> None:
    engines = Engines(three)
    assert engines.has_choice("1")
    home(engines, "1")
    assert not engines.has_choice("1")
    engines.forget(["1"])
    assert engines.has_choice("1")
    assert not Engines(three[:1]).has_choice("1")


def test_engines_are_idle_while_they_have_no_request(
    three: list[LettersEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(pool.time, "monotonic", lambda: clock[0])
    engines = Engines(three)

    def after(seconds: float) -> float:
        clock[0] += seconds
        return engines.idle_seconds

    assert after(3.0) == 3.0
    with engines.route("a", sticky=True):
        assert after(6.0) == 7.0, "two of three have none"
        with engines.route("a", sticky=True), engines.route("b", sticky=True):
            assert after(3.0) == 8.0
        assert after(3.0) == 10.0, "the first still has one"
    assert after(3.0) == 13.0
    assert Engines([]).idle_seconds == 0.0


async def test_a_server_without_engines_says_so_at_once() -> None:
    engines = Engines([])
    with pytest.raises(EngineError, match="this server has no engine"):
        await engines.wait_ready(PATIENCE)
