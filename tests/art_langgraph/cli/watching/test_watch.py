"""`status`, `top` and `watch` on the real server: on a terminal, in a pipe, for programs."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from art_langgraph import TrainerClient
from art_langgraph.cli.status import status_screen, top_screen
from art_langgraph.cli.watch import watch_screen
from art_langgraph.cli.watching import Following, find_target
from tests.support.cli import art
from tests.support.homes.jobs import groups
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError, GroupRef, GRPOConfig


def drawn(screen: object) -> str:
    """What a wide terminal shows: other tests of the same server have policies with long names."""
    console = Console(file=StringIO(), width=400, force_terminal=True, color_system=None)
    for part in screen if isinstance(screen, list) else [screen]:
        console.print(part)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


async def trained(connected: TrainerServer, policy: str, run: str) -> str:
    """Takes a step of a training run, and returns the id of its job."""
    async with TrainerClient() as client:
        await client.create_policy(policy)
        with connected.http() as http:
            made = [GroupRef.model_validate(one) for one in groups(http, 0.0, 1.0, model=policy)]
        job = await client.submit(policy, made, GRPOConfig(), idempotency_key=f"{run}-step-1")
        await client.wait(job)
    return job.id


async def test_a_training_is_watched_until_it_ends(connected: TrainerServer) -> None:
    job = await trained(connected, "watched", "mine")
    alone = art("watch", job, "--every", "0.2")
    assert alone.exit_code == 0, alone.output
    (line,) = alone.output.splitlines()
    assert "made watched@1: reward 0.500" in line
    lines = [json.loads(line) for line in art("watch", "watched", "--idle", "0.3", "--json").output.splitlines()]
    assert lines[-1]["kind"] == "over"
    assert "watched is at version 1" in lines[-1]["text"]
    async with TrainerClient() as client:
        target = await find_target(client, "mine")
        assert (target.policy, target.steps) == ("watched", {job: 1})
        with pytest.raises(ConfigError, match=r"'nothing' is no policy, no job and no training run.*watched"):
            await find_target(client, "nothing")
        following = Following(client, target)
        async for _ in following.looks(idle=0.3, every=0.2):
            text = drawn(watch_screen(following))
    for part in ("run mine of watched", "newest @1", "1 steps accepted", "reward_mean", "@1"):
        assert part in text, part


async def test_a_screen_of_the_server(connected: TrainerServer) -> None:
    await trained(connected, "screened", "other")
    done = art("status")
    assert done.exit_code == 0, done.output
    told = json.loads(art("status", "--json").output)
    assert told["ready"]
    assert "screened" in [policy["name"] for policy in told["policies"]]
    look = json.loads(art("top", "--once", "--json").stdout)
    assert "screened" in [one["policy"] for one in look["traffic"]]
    async with TrainerClient() as client:
        status = await client.status()
    status.policies = [one for one in status.policies if one.name == "screened"]  # other tests have made many
    status.traffic = [one for one in status.traffic if one.policy == "screened"]
    status.problems = []
    text = drawn(status_screen(status, connected.url))
    for part in (
        connected.url,
        "ready",
        "screened",
        "step made @1, reward 0.500",
        "GiB",
        "sampled/s",
        "no job is open",
    ):
        assert part in text, part
    text = drawn(top_screen(status, connected.url))
    for part in ("screened", "tokens/s, 10 s", "requests at engines"):
        assert part in text, part


def test_a_server_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ART_API_KEY", "key")
    monkeypatch.setenv("ART_RETRY_FOR", "0")
    for words in (["status"], ["top", "--once"], ["watch", "agent"]):
        assert "no trainer server answers at http://127.0.0.1:9" in str(art(*words).exception)
