"""Prompts of several turns, through the gateway: what the engine gets, and what the ledger says of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.engine_app import END
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.gateway.splice.splicer import SpliceMode, Splicer
from trainer_server.wire import Completion, PrefixDrift, prefix_drift

QUESTION = 'turn call f {"b":1,"a":[2]}'
WROTE = 'call f {"b":1,"a":[2]}'
REWRITTEN = 'call f {"b": 1, "a": [2]}'


class Agent:
    """A client that keeps a conversation, and writes what it gets anew, as frameworks do."""

    def __init__(self, server: TrainerServer, rollout: str | None = None, **body: Any) -> None:
        self._server, self._rollout, self._body = server, rollout, body
        self.messages: list[dict[str, Any]] = []

    def ask(self, *messages: dict[str, Any], **body: Any) -> dict[str, Any]:
        """Says something and keeps the answer. Returns the ledger's row of it."""
        self.messages += messages
        headers = {"X-ART-Rollout": self._rollout} if self._rollout else {}
        sent = {"model": "agent", "max_tokens": 100, **self._body, **body, "messages": self.messages}
        with self._server.http() as http:
            answer = http.post("/v1/chat/completions", json=sent, headers=headers)
            assert answer.status_code == 200, answer.text
            events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
            row = dict(http.get(f"/api/completions/{json.loads(events[0])['id']}").json())
        message = dict(row["message"])
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
        self.messages.append(message)
        return row


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def tool(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call-f", "content": content}


def text(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


@pytest.fixture
def splicer(server: TrainerServer) -> Iterator[Splicer]:
    """The server's, a new one for each test."""
    gateway = server.app.state.server.gateway
    before = gateway.splicer
    assert before.mode == SpliceMode.exact
    gateway.splicer = Splicer(SpliceMode.exact)
    yield gateway.splicer
    gateway.splicer, server.engine["splices"] = before, True


@pytest.mark.parametrize("body", [{}, {"stream": True}], ids=["whole", "streamed"])
def test_turns_extend_one_another_although_the_client_writes_calls_anew(
    server: TrainerServer, splicer: Splicer, body: dict[str, Any]
) -> None:
    agent = Agent(server, f"extends-{bool(body)}", **body)
    first = agent.ask(user(QUESTION))
    assert (first["continues"], first["continuation"]) == (None, None)
    assert text(first["token_ids"]) == WROTE + END
    second = agent.ask(tool("turn say done"))
    assert (second["continues"], second["continuation"]) == (first["id"], "spliced")
    assert text(second["prompt_token_ids"]) == QUESTION + WROTE + END + "turn say done"
    third = agent.ask(user("say more"))
    assert (third["continues"], third["continuation"]) == (second["id"], "spliced")
    assert text(third["prompt_token_ids"]) == QUESTION + WROTE + END + "turn say done" + "done" + END + "say more"
    rows = [Completion.model_validate(row) for row in (first, second, third)]
    assert prefix_drift(rows) == PrefixDrift(sampled=len(WROTE + END + "done" + END), missing=0)


def test_without_splices_the_drift_is_measured(server: TrainerServer, splicer: Splicer) -> None:
    splicer.mode = SpliceMode.off
    agent = Agent(server, "drifts")
    rows = [agent.ask(user(QUESTION)), agent.ask(tool("turn say done")), agent.ask(user("say more"))]
    assert [row["continuation"] for row in rows] == [None, "off", "off"]
    assert [row["continues"] for row in rows] == [None, rows[0]["id"], rows[1]["id"]]
    assert text(rows[1]["prompt_token_ids"]) == QUESTION + REWRITTEN + END + "turn say done"
    kept = len('call f {"b":')
    drift = prefix_drift([Completion.model_validate(row) for row in rows])
    assert drift == PrefixDrift(sampled=len(WROTE + END + "done" + END), missing=len(WROTE + END) - kept)


def test_prompts_without_drift_are_left_alone(server: TrainerServer, splicer: Splicer) -> None:
    agent = Agent(server, "alone")
    agent.ask(user("turn say a"))
    assert agent.ask(user("turn say b"))["continuation"] == "extended"
    assert "kv_transfer_params" not in server.engine["requests"][-1]


def test_parallel_branches_continue_their_own_turn(server: TrainerServer, splicer: Splicer) -> None:
    agent = Agent(server, "branches")
    fork = agent.ask(user(QUESTION))
    branches = [Agent(server, "branches") for _ in range(2)]
    for branch, result in zip(branches, ("turn say left", "turn say right"), strict=True):
        branch.messages = list(agent.messages)
        assert branch.ask(tool(result))["continues"] == fork["id"]
    ends = [branch.ask(user("say so")) for branch in branches]
    assert [row["continuation"] for row in ends] == ["spliced", "spliced"]
    assert "say leftleft" in text(ends[0]["prompt_token_ids"])
    assert "say rightright" in text(ends[1]["prompt_token_ids"])


def test_calls_without_a_rollout_continue_by_their_messages(server: TrainerServer, splicer: Splicer) -> None:
    agent = Agent(server)
    first = agent.ask(user(QUESTION + " " * 7))
    second = agent.ask(tool("say x"))
    assert (second["continues"], second["continuation"]) == (first["id"], "spliced")


def test_all_choices_of_an_answer_can_be_continued(server: TrainerServer, splicer: Splicer) -> None:
    agent = Agent(server, "choices")
    first = agent.ask(user(QUESTION), n=3)
    assert agent.ask(tool("say x"))["continues"] in (first["id"], f"{first['id']}.1", f"{first['id']}.2")


@pytest.mark.parametrize(
    ("question", "then", "why"),
    [
        (QUESTION.removeprefix("turn "), {}, "unlike"),  # the last token is an ordinary one
        (QUESTION, {"continue_final_message": True, "add_generation_prompt": False}, "prefill"),
    ],
)
def test_what_cannot_be_proven_is_rendered_anew(
    server: TrainerServer, splicer: Splicer, question: str, then: dict[str, Any], why: str
) -> None:
    agent = Agent(server, f"anew {question} {len(then)}")
    agent.ask(user(question))
    row = agent.ask(tool("say x"), **then)
    assert row["continuation"] == why
    assert text(row["prompt_token_ids"]) == question + REWRITTEN + END + "say x"


def test_an_answer_cut_by_the_limit_is_rendered_anew(server: TrainerServer, splicer: Splicer) -> None:
    agent = Agent(server, "cut")
    agent.ask(user(QUESTION), max_tokens=len(WROTE))
    assert agent.ask(tool("say x"))["continuation"] == "cut"


def test_thoughts_that_the_client_leaves_out_are_known_without_rendering(
    server: TrainerServer, splicer: Splicer
) -> None:
    for mode, way, prompt in (
        (SpliceMode.exact, "thoughts", "Hi" + END),
        (SpliceMode.thoughts, "spliced", "hmHi" + END),
    ):
        splicer.mode = mode
        agent = Agent(server, f"thinks-{mode}")
        agent.ask(user("turn think hm|Hi"))
        del agent.messages[-1]["reasoning"]
        rendered = len(server.engine["tokenized"])
        row = agent.ask(user("say x"))
        assert row["continuation"] == way
        assert text(row["prompt_token_ids"]) == "turn think hm|Hi" + prompt + "say x"
        assert (len(server.engine["tokenized"]) > rendered) == (mode == SpliceMode.thoughts)


def test_a_forced_call_is_rendered_anew(server: TrainerServer, splicer: Splicer) -> None:
    agent = Agent(server, "forced")
    tools = [{"type": "function", "function": {"name": "f"}}]
    agent.ask(user('turn say {"a":1}'), tools=tools, tool_choice="required")
    assert agent.ask(tool("say x"), tools=tools)["continuation"] == "forced"


def test_a_spliced_prompt_that_the_engine_refuses_is_rendered(server: TrainerServer, splicer: Splicer) -> None:
    """The policy's own words may be longer than the template's, and too long for the context."""
    agent = Agent(server, "refused")
    padded = "turn call f " + '{"a":' + " " * 600 + "1}"
    agent.ask(user(padded), max_tokens=700)
    row = agent.ask(tool("say x"), max_tokens=1_300)
    assert row["continuation"] == "refused"
    assert row["status"] == "complete"
    assert row["untrainable"] is None
    assert text(row["prompt_token_ids"]).endswith('call f {"a": 1}' + END + "say x")


def test_an_engine_that_ignores_tokens_is_noticed_and_said_once(
    server: TrainerServer, splicer: Splicer, caplog: pytest.LogCaptureFixture
) -> None:
    server.engine["splices"] = False
    agent = Agent(server, "ignored")
    agent.ask(user(QUESTION))
    with caplog.at_level(logging.WARNING):
        row = agent.ask(tool(QUESTION))
        assert (row["continuation"], row["untrainable"]) == ("unsupported", None)
        assert text(row["prompt_token_ids"]) == QUESTION + REWRITTEN + END + QUESTION
        assert agent.ask(tool("say y"))["continuation"] == "unsupported"
    assert "kv_transfer_params" not in server.engine["requests"][-1]
    assert sum("does not take tokens as a prompt" in record.message for record in caplog.records) == 1


def test_a_prompt_that_is_neither_sent_nor_rendered_is_never_trained(server: TrainerServer, splicer: Splicer) -> None:
    server.engine["splices"] = "garbled"
    agent = Agent(server, "garbled")
    agent.ask(user(QUESTION))
    row = agent.ask(tool("say x"))
    assert "the engine was prompted with" in row["untrainable"]
