"""The benchmark of the gateway at a GPU's rate: what its engines send is vLLM's form, and a run loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.throughput import differs, text_of
from testbed.engine_replay import answer_of, events, whole
from tests.support.homes.ledger_rows import row as ledger_row
from trainer_server.engines.vllm.replies import ChatAnswer, ChatChunk, read

ANSWER = answer_of(3, tokens=8, prompt=5)


def test_answers_of_the_engine_have_the_form_that_is_expected_of_vllm() -> None:
    body = read(raw := whole(ANSWER, "agent@1"), ChatAnswer)
    assert body["choices"][0]["token_ids"] == ANSWER.token_ids
    assert text_of(raw, False) == ANSWER.text
    *parts, end = [event.removeprefix(b"data: ").strip() for event in events(ANSWER, "agent@1")]
    assert end == b"[DONE]"
    chunks = [read(part, ChatChunk) for part in parts]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [token for choice in choices for token in choice.get("token_ids") or []] == ANSWER.token_ids
    assert text_of(b"".join(events(ANSWER, "agent@1")), True) == ANSWER.text
    together = [
        chunk
        for part in events(ANSWER, "agent@1", 3)
        if part[:7] == b"data: {"
        for chunk in read(part[6:], ChatChunk)["choices"]
        if chunk.get("token_ids")
    ]
    assert [len(choice["token_ids"]) for choice in together] == [1, 3, 3, 1]
    assert [entry["logprob"] for choice in together for entry in choice["logprobs"]["content"]] == ANSWER.logprobs
    assert text_of(b"".join(events(ANSWER, "agent@1", 3)), True) == ANSWER.text
    assert text_of(b"".join([*events(ANSWER, "agent@1")][:-1]), True) == ""


def test_a_row_with_another_token_differs() -> None:
    row = ledger_row("a").model_copy(
        update={
            "prompt_token_ids": ANSWER.prompt_token_ids, "token_ids": ANSWER.token_ids, "logprobs": ANSWER.logprobs,
            "message": {"role": "assistant", "content": ANSWER.text},
        }
    )  # fmt: skip
    assert not differs(row, ANSWER)
    assert differs(row.model_copy(update={"token_ids": [*ANSWER.token_ids[:-1], 0]}), ANSWER)
    assert differs(row.model_copy(update={"logprobs": [*ANSWER.logprobs[:-1], 0.0]}), ANSWER)
    assert differs(row.model_copy(update={"untrainable": "a token is missing"}), ANSWER)


@pytest.mark.slow
def test_a_short_run_loses_nothing() -> None:
    line = [sys.executable, "-m", "benchmarks.throughput", "--json", "--requests", "8", "--rounds", "1"]
    done = subprocess.run([*line, "--tokens", "32"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["rows"], result["lost"], result["differing"]) == (32, 0, 0)
    assert [case["answers"] for case in result["cases"]] == ["whole", "streamed"]
    for case in result["cases"]:
        assert case["completions"] == 8
        assert sum(case["cpu_ms_by_part"].values()) == pytest.approx(case["cpu_ms"])
        assert case["cpu_ms"] > 0
