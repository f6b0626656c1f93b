"""Warm starts over HTTP: rendered by the engine, trained by the real trainer process on a tiny model, served."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from testbed.engine_app import END, PARAGRAPH, UNSEEN
from tests.support.homes.jobs import ask, finish, groups, version_of
from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TrainerServer, trainer_server_on
from trainer_server.jobs.demonstrations import Row
from trainer_server.jobs.queue import JobQueue

pytestmark = pytest.mark.slow

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CONFIG = {"lr": 1e-2, "num_train_epochs": 4, "per_device_train_batch_size": 2}


def said(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def called(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return said("assistant", None, tool_calls=[{"id": "c1", "type": "function", "function": function}])


def ids(text: str) -> list[int]:
    return [ord(char) for char in text]


def rows_of(server: TrainerServer, job: dict[str, Any]) -> list[Row]:
    found = JobQueue(server.home.jobs).rows(job["id"])
    assert found is not None
    return found.rows


def start(server: TrainerServer, conversations: list[dict[str, Any]], policy: str = "warm", **more: Any) -> Any:
    """A finished warm start."""
    with server.http() as http:
        http.post("/api/policies", json={"name": policy})
        body = {"conversations": conversations, "config": CONFIG, **more}
        return finish(http, http.post(f"/api/policies/{policy}/sft", json=body))


def test_a_warm_start_makes_a_version_that_is_served(server: TrainerServer) -> None:
    lines = [{"messages": [said("user", f"what is {n}?"), said("assistant", f"it is {n}")]} for n in range(4)]
    job = start(server, lines, "w1")
    assert job["status"] == "succeeded", job["error"]
    assert job["kind"] == "sft"
    assert set(job["seconds"]) == {"render", "train", "swap"}
    metrics = job["result"]["metrics"]
    assert job["result"]["version"] == 1
    assert metrics["loss_last"] < metrics["loss_first"]
    assert (metrics["rows"], metrics["turns"], metrics["updates"]) == (4, 4, 8)
    assert set(metrics["seconds"]) == {"render", "validation", "compute"}
    with server.http() as http:
        assert version_of(http, ask(http, "say x", "w1")) == 1
        stepped = finish(http, http.post("/api/policies/w1/steps", json={"groups": groups(http, 1.0, 0.0, model="w1")}))
        assert stepped["result"]["version"] == 2
        assert [one["version"] for one in http.get("/api/policies/w1/versions").json()["versions"]] == [0, 1, 2]


def test_what_is_validated_is_measured_and_the_job_tells_the_losses(server: TrainerServer) -> None:
    lines = [{"messages": [said("user", f"what is {n}?"), said("assistant", f"it is {n}")]} for n in range(5)]
    job = start(server, lines, "w7", validation=[lines[4]])
    assert job["status"] == "succeeded", job["error"]
    metrics = job["result"]["metrics"]
    assert (metrics["rows"], metrics["turns_skipped"], metrics["validation_rows"]) == (4, {"in_validation": 1}, 1)
    losses = metrics["validation_losses"]
    assert len(losses) == len(metrics["validation_updates"]) > 1
    assert min(losses) < losses[0]
    assert metrics["stopped"] in ("epochs", "patience")
    unanswered = {"messages": [said("user", "nobody answers")]}
    job = start(server, lines, "w7", validation=[unanswered])
    assert (job["status"], job["error"]) == ("failed", "validation: nothing to measure: 1 no_answer")


def test_rows_are_what_the_gateway_prompts_with_and_gets_back(server: TrainerServer) -> None:
    """Prompt and answer of a demonstration equal the ledger's of the same request; the small engine samples no end."""
    question = 'call add {"a": 1}'
    with server.http() as http:
        one = http.post(
            "/v1/chat/completions", json={"model": "agent", "messages": [said("user", question)], "tools": [TOOL]}
        ).json()
        ledger = http.get(f"/api/completions/{one['id']}").json()
    message = {k: v for k, v in one["choices"][0]["message"].items() if v is not None}
    job = start(server, [{"messages": [said("user", question), message], "tools": [TOOL]}])
    (row,) = rows_of(server, job)
    (span,) = row.loss_spans
    assert row.ids[: span[0]] == ledger["prompt_token_ids"]
    assert row.ids[span[0] : span[1]] == [*ledger["token_ids"], ord(END)]
    asked = server.engine["tokenized"][-1]
    assert asked["tools"] == [TOOL]


def test_tools_of_the_request_are_those_of_conversations_without_any(server: TrainerServer) -> None:
    messages = [said("user", "hi"), said("assistant", "ho")]
    start(server, [{"messages": messages}], tools=[TOOL], validation=[{"messages": [said("user", "h"), messages[1]]}])
    assert server.engine["tokenized"][-1]["tools"] == [TOOL]
    start(server, [{"messages": messages, "tools": []}], tools=[TOOL])
    assert not server.engine["tokenized"][-1].get("tools")


def test_every_answer_of_a_conversation_is_learnt_or_just_the_last(server: TrainerServer) -> None:
    messages = [
        said("system", "be brief"), said("user", "add"), called("add", "{}"), said("tool", "3", tool_call_id="c1"),
        said("assistant", "three"),
    ]  # fmt: skip
    (row,) = rows_of(server, start(server, [{"messages": messages, "tools": [TOOL]}]))
    text = f"be briefaddcall add {{}}{END}3three{END}"
    assert row.ids == ids(text)
    assert [text[a:b] for a, b in row.loss_spans] == [f"call add {{}}{END}", f"three{END}"]
    last = start(server, [{"messages": messages}], config={**CONFIG, "train_on": "last"})
    (row,) = rows_of(server, last)
    assert [text[a:b] for a, b in row.loss_spans] == [f"three{END}"]
    context = [messages[0], messages[1], {**messages[2], "weight": 0}, *messages[3:]]
    (row,) = rows_of(server, start(server, [{"messages": context}]))
    assert [text[a:b] for a, b in row.loss_spans] == [f"three{END}"]


def test_tokens_that_merge_across_the_border_begin_where_sampling_does(server: TrainerServer) -> None:
    """The engine would write the two newlines as one token; the model is prompted with the first and says the other."""
    (row,) = rows_of(server, start(server, [{"messages": [said("user", "hm\n"), said("assistant", "\n\n\nyes")]}]))
    assert row.ids == [*ids("hm\n"), PARAGRAPH, *ids(f"\nyes{END}")]
    assert row.loss_spans == [(3, len(row.ids))]


def test_what_cannot_be_imitated_is_counted(server: TrainerServer) -> None:
    good = [said("user", "hi"), said("assistant", "ho")]
    job = start(
        server,
        [
            {"messages": good},
            {"messages": [said("user", "nobody answers")]},
            {"messages": [said("user", "hi"), said("assistant", "")]},
            {"messages": [said("user", "hi"), said("assistant", f"a{END}b")]},
            {"messages": [said("user", "(hint) think"), said("assistant", "ho")]},
            {"messages": [said("user", "hi"), said("assistant", "long" * 30)]},
            {"messages": [said("user", "hi"), called(UNSEEN, "{}")]},
            {"messages": [said("user", "hi"), said("assistant", "ho", reasoning_content="they greet")]},
        ],
        config={**CONFIG, "max_length": 100},
    )
    metrics = job["result"]["metrics"]
    assert metrics["turns"] == 1
    assert metrics["conversations_skipped"] == {"no_answer": 1}
    assert metrics["turns_skipped"] == {
        "empty": 1, "end_in_text": 1, "template_rewrites_prompt": 1, "too_long": 1, "template_drops_tool_calls": 1,
        "template_drops_reasoning": 1,
    }  # fmt: skip


def test_nothing_to_imitate_makes_no_version(server: TrainerServer) -> None:
    job = start(server, [{"messages": [said("user", "nobody answers")]}], "w2")
    assert job["status"] == "succeeded"
    assert job["result"]["version"] == 0
    assert job["result"]["metrics"]["skipped"] == "nothing to imitate: 1 no_answer"


def test_completions_are_imitated_with_their_own_tokens(server: TrainerServer) -> None:
    with server.http() as http:
        found = {name: ask(http, f"say {name}", "agent") for name in ("good", "bad", "unscored")}
    rewards = {"good": 1.0, "bad": 0.0, "unscored": None}
    refs = [{"id": name, "reward": rewards[name], "completions": [one]} for name, one in found.items()]
    refs.append({"id": "gone", "reward": 1.0, "completions": ["chatcmpl-gone"]})
    job = start(server, [], trajectories=refs, config={**CONFIG, "min_reward": 0.5})
    assert rows_of(server, job) == [Row(ids=ids("say goodgood"), loss_spans=[(8, 12)])]
    metrics = job["result"]["metrics"]
    assert metrics["trajectories_skipped"] == {"low_reward": 1, "no_reward": 1}
    assert metrics["turns_skipped"] == {"missing": 1}


def test_warm_starts_are_idempotent(server: TrainerServer) -> None:
    lines = [{"messages": [said("user", "a"), said("assistant", "b")]}]
    job = start(server, lines, "w3", idempotency_key="warm")
    with server.http() as http:
        body = {"conversations": lines, "config": CONFIG, "idempotency_key": "warm"}
        assert http.post("/api/policies/w3/sft", json=body).json()["id"] == job["id"]
        other = http.post("/api/policies/w3/sft", json={**body, "config": {"lr": 1e-3}})
        assert other.status_code == 409
        assert job["id"] in other.json()["error"]["message"]
        step = {"groups": groups(http, 1.0, 0.0, model="w3"), "idempotency_key": "warm"}
        assert http.post("/api/policies/w3/steps", json=step).status_code == 409
        found = http.get("/api/policies/w3/steps", params={"idempotency_key": "warm"}).json()
        assert found["id"] == job["id"]


@pytest.mark.parametrize(
    ("conversation", "what"),
    [
        ({"messages": [said("human", "hi")]}, "role 'human' is none of system"),
        ({"messages": [said("user", None)]}, "a user message needs content"),
        ({"messages": [said("assistant", "hi")]}, "put a user message first"),
        ({"messages": [said("user", [{"type": "image_url"}])]}, "must hold text parts"),
        ({"messages": [said("user", "hi"), said("assistant", "ho", weight=2)]}, "weight must be 0"),
        ({"messages": [said("user", "hi"), called("add", "[1]")]}, "arguments of add must be a JSON object"),
        ({"messages": [said("user", "hi"), called("", "{}")]}, "a tool call must be"),
        ({"messages": []}, "at least 1 item"),
        ({"messages": [said("user", "hi")], "tools": [{"name": "add"}]}, "tool 0"),
        ({"messages": [said("user", "hi")], "function_call": {}}, "Extra inputs"),
    ],
)
def test_a_bad_row_is_named_with_what_would_be_right(
    server: TrainerServer, conversation: dict[str, Any], what: str
) -> None:
    fine = {"messages": [said("user", "hi"), said("assistant", "ho")]}
    with server.http() as http:
        answer = http.post("/api/policies/agent/sft", json={"conversations": [fine, conversation]})
    assert answer.status_code == 422
    message = answer.json()["error"]["message"]
    assert message.startswith("conversations.1.")
    assert what in message


def test_bad_requests_are_refused(server: TrainerServer) -> None:
    with server.http() as http:
        fine = {"conversations": [{"messages": [said("user", "hi"), said("assistant", "ho")]}]}
        assert http.post("/api/policies/nobody/sft", json=fine).status_code == 404
        assert "nothing to imitate" in http.post("/api/policies/agent/sft", json={}).json()["error"]["message"]
        for config in ({"lr": 0}, {"learning_rate": 1e-3, "lr": 1e-3}, {"num_train_epochs": 0}):
            assert http.post("/api/policies/agent/sft", json={**fine, "config": config}).status_code == 422


def test_a_conversation_that_the_engine_cannot_render_fails_the_job_by_name(server: TrainerServer) -> None:
    fine = {"messages": [said("user", "hi"), said("assistant", "ho")]}
    job = start(server, [fine, {"messages": [said("user", "unrenderable"), said("assistant", "ho")]}], "w4")
    assert job["status"] == "failed"
    assert "conversation 1" in job["error"]
    assert "the template says no" in job["error"]
    assert start(server, [fine], "w4")["result"]["version"] == 1


def test_rendering_waits_for_an_engine_that_is_away(server: TrainerServer) -> None:
    server.engine["unready"] = 2
    job = start(server, [{"messages": [said("user", "hi"), said("assistant", "ho")]}], "w6")
    assert job["status"] == "succeeded"
    assert server.engine["unready"] == 0


def test_an_answer_of_the_engine_that_cannot_be_read_fails_the_job_and_holds_up_no_other(server: TrainerServer) -> None:
    job = start(server, [{"messages": [said("user", "unreadable"), said("assistant", "ho")]}], "w7")
    assert job["status"] == "failed"
    assert "No version was made" in job["error"]
    fine = {"messages": [said("user", "hi"), said("assistant", "ho")]}
    assert start(server, [fine], "w7")["status"] == "succeeded"


def test_tokenizing_is_not_offered_to_clients(server: TrainerServer) -> None:
    with server.http() as http:
        for path in ("/tokenize", "/detokenize", "/v1/tokenize"):
            assert http.post(path, json={"prompt": "x"}).status_code == 404


def test_jobs_of_a_policy_make_its_versions_in_their_order(server: TrainerServer) -> None:
    with server.http() as http:
        http.post("/api/policies", json={"name": "w5"})
        refs = groups(http, 1.0, 0.0, model="w5")
        lines = [{"messages": [said("user", f"{n}?"), said("assistant", f"{n}!")]} for n in range(20)]
        warm = http.post("/api/policies/w5/sft", json={"conversations": lines, "config": CONFIG})
        step = http.post("/api/policies/w5/steps", json={"groups": refs})
        assert finish(http, warm)["result"]["version"] == 1
        assert finish(http, step)["result"]["version"] == 2


def test_a_killed_trainer_comes_back_and_finishes(tmp_path: Path, base_model: Path) -> None:
    with trainer_server_on(tmp_path, base_model) as server, server.http() as http:
        http.post("/api/policies", json={"name": "p"})
        lines = [{"messages": [said("user", "a"), said("assistant", "b")]}]
        pid = json.loads((tmp_path / "trainer.json").read_text())["pid"]
        job = http.post("/api/policies/p/sft", json={"conversations": lines, "config": CONFIG})
        os.kill(pid, signal.SIGKILL)
        assert finish(http, job)["result"]["version"] == 1
        environment = Path(f"/proc/{json.loads((tmp_path / 'trainer.json').read_text())['pid']}/environ").read_bytes()
        assert b"HF_HUB_DISABLE_TELEMETRY=1" in environment
        assert b"HF_HUB_OFFLINE=1" in environment


def test_a_trainer_killed_in_the_middle_begins_again_and_makes_one_version(tmp_path: Path, base_model: Path) -> None:
    lines = [{"messages": [said("user", f"{n}?"), said("assistant", f"{n}!")]} for n in range(8)]
    with trainer_server_on(tmp_path, base_model) as server, server.http() as http:
        http.post("/api/policies", json={"name": "p"})
        body = {"conversations": lines, "config": {**CONFIG, "num_train_epochs": 15}}
        job = http.post("/api/policies/p/sft", json=body)
        told: dict[str, Any] = {"progress": None}
        deadline = time.monotonic() + PATIENCE
        while told["progress"] is None and time.monotonic() < deadline:
            told = http.get(f"/api/jobs/{job.json()['id']}", params={"wait": 0.1}).json()
        assert told["progress"] is not None
        assert 0 < told["progress"] < 1
        assert told["measured"]["loss"] > 0
        assert told["measured"]["updates_left"] > 0
        os.kill(json.loads((tmp_path / "trainer.json").read_text())["pid"], signal.SIGKILL)
        done = finish(http, job)
        assert done["result"]["version"] == 1
        assert done["result"]["metrics"]["updates"] == 60
        assert [one["version"] for one in http.get("/api/policies/p/versions").json()["versions"]] == [0, 1]


def test_a_restarted_server_renders_what_was_not_rendered(tmp_path: Path, base_model: Path) -> None:
    """Killed between accepting and rendering: the job is found without rows, and gets them."""
    lines = [{"messages": [said("user", "a"), said("assistant", "b")]}]
    with trainer_server_on(tmp_path, base_model) as server, server.http() as http:
        http.post("/api/policies", json={"name": "p"})
        body = {"conversations": lines, "config": CONFIG, "idempotency_key": "k"}
        job = finish(http, http.post("/api/policies/p/sft", json=body))
    directory = tmp_path / "jobs" / job["id"]
    for name in ("rows.json", "started.json", "trained.json", "done.json"):
        (directory / name).unlink()
    versions = tmp_path / "policies" / "p" / "versions"
    (versions / "1").rename(tmp_path / "undone")
    (versions.parent / "highest.json").unlink()
    with trainer_server_on(tmp_path, base_model) as server, server.http() as http:
        again = finish(http, http.post("/api/policies/p/sft", json=body))
        assert again["id"] == job["id"]
        assert again["result"]["version"] == 1
    weights = "adapter_model.safetensors"
    assert (versions / "1" / weights).read_bytes() == (tmp_path / "undone" / weights).read_bytes()
