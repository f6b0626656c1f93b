"""`policies create`, `export` and `jobs`: what commands refuse, and how a job is named."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from art_langgraph import TrainerClient
from art_langgraph.cli.main import build
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError, ServerError, ServerUnreachable


def art(*words: str) -> Result:
    """In this process, but in a thread: a command starts an event loop of its own."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(CliRunner().invoke, build(), list(words)).result(120)


async def test_a_directory_with_files_is_not_written_into_unless_forced(tmp_path: Path) -> None:
    kept = tmp_path / "adapter" / "notes.md"
    kept.parent.mkdir()
    kept.write_text("mine")
    async with TrainerClient("http://127.0.0.1:1", "key", retry_for=0) as client:
        with pytest.raises(ConfigError, match=r"adapter is not empty: .*force=True \(`--force`\)"):
            await client.export("agent", 1, kept.parent)
        with pytest.raises(ServerUnreachable):
            await client.export("agent", 1, kept.parent, force=True)
        with pytest.raises(ServerUnreachable):
            await client.export("agent", 1, tmp_path / "new")
    assert kept.read_text() == "mine"


def test_export_of_the_command_line_refuses_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ART_API_KEY", "key")
    monkeypatch.setenv("ART_RETRY_FOR", "0")
    (tmp_path / "file").touch()
    error = art("export", "agent@1", "--output", str(tmp_path)).exception
    assert isinstance(error, ConfigError)
    assert isinstance(art("export", "agent@1", "--output", str(tmp_path), "--force").exception, ServerUnreachable)


async def test_jobs_are_listed_and_named_by_the_beginning_of_an_id(
    connected: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TrainerClient() as client:
        await client.create_policy("jobs-cli")
        jobs = await client.jobs()
    job = next(job for job in jobs if job.policy == "jobs-cli")
    monkeypatch.setenv("COLUMNS", "40")
    assert job.id in art("jobs", "list").output
    assert job.id in [row["id"] for row in json.loads(art("jobs", "list", "--status", "succeeded", "--json").output)]
    assert job.id not in [row["id"] for row in json.loads(art("jobs", "list", "--status", "failed", "--json").output)]
    unique = next(
        job.id[:end] for end in range(1, len(job.id) + 1) if sum(o.id.startswith(job.id[:end]) for o in jobs) == 1
    )
    refused = art("jobs", "cancel", unique).exception
    assert isinstance(refused, ServerError)  # it has ended: the server was asked about this very job
    assert refused.status == 409
    unknown = art("jobs", "cancel", "nothing").exception
    assert isinstance(unknown, ConfigError)
    assert "no job 'nothing'" in str(unknown)
    if len(jobs) > 1:
        assert "Give more characters" in str(art("jobs", "cancel", "").exception)


async def test_a_policy_is_created_once_and_not_with_other_values(connected: TrainerServer) -> None:
    words = ("policies", "create", "made-by-cli", "--target", "q_proj", "--target", "v_proj", "--temperature", "1")
    for _ in range(2):
        made = art(*words)
        assert made.exit_code == 0, made.output
        assert made.output.startswith("made-by-cli: rank 8, temperature 1, on ")
    async with TrainerClient() as client:
        spec = (await client.policy("made-by-cli")).spec
    assert (spec.targets, spec.alpha, spec.temperature) == (("q_proj", "v_proj"), 16.0, 1.0)
    assert json.loads(art(*words, "--json").output)["latest"] == 0
    other = art("policies", "create", "made-by-cli", "--rank", "16").exception
    assert isinstance(other, ServerError)
    assert other.status == 409
    assert isinstance(art("policies", "create", "made-by-cli", "--rank", "7").exception, ConfigError)
