"""The benchmark of the client's processor time: what it asks is answered as the trainer server answers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from testbed.gateway_replay import ReplayGateway
from trainer_server.wire.completions import CHAT


def test_an_agent_calls_its_tool_and_then_answers() -> None:
    gateway = ReplayGateway(calls=2, words=3, seconds=0)
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    messages: list[dict[str, object]] = [{"role": "user", "content": "What of the sea?"}]
    first = gateway._answer({"model": "agent", "messages": messages, "tools": tools})
    (choice,) = first["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "look_up"
    messages += [choice["message"], {"role": "tool", "content": "wide"}]
    last = gateway._answer({"model": "agent", "messages": messages, "tools": tools})
    assert last["choices"][0]["message"]["content"] == "sea sea sea"
    assert first["id"].startswith(CHAT)
    assert first["id"] != last["id"] == last["system_fingerprint"]


@pytest.mark.slow
def test_a_short_run_captures_all_completions() -> None:
    line = [sys.executable, "-m", "benchmarks.capture", "--json", "--client", "4"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout.splitlines()[-1])["cases"]
    assert [(case["rollouts"], case["side"]) for case in cases] == [(4, "bare"), (4, "recorded")]
    for case in cases:
        assert sum(case["cpu_ms_by_part"].values()) == pytest.approx(case["cpu_ms"])
