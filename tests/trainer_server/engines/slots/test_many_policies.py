"""Eight policies on four slots: all are asked and trained at once, and each answers with its own weights."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from testbed.engine_app import weights
from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import trainer_server_on

pytestmark = pytest.mark.slow

POLICIES = [f"p{number}" for number in range(8)]
SLOTS = 4
CALLS = 3


def test_eight_policies_share_four_slots(tmp_path: Path, base_model: Path) -> None:
    answers: Counter[tuple[str, int]] = Counter()
    failures: list[str] = []
    stop = threading.Event()

    with trainer_server_on(tmp_path, base_model, adapter_slots=SLOTS) as server:

        def ask(policy: str, content: str, rollout: str | None = None) -> tuple[str, str]:
            """The completion's id, and the answer."""
            with server.http() as http:
                body = {"model": policy, "messages": [{"role": "user", "content": content}]}
                headers = {"X-ART-Rollout": rollout} if rollout else {}
                answer = http.post("/v1/chat/completions", json=body, headers=headers)
                assert answer.status_code == 200, answer.text
                return answer.json()["id"], answer.json()["choices"][0]["message"]["content"]

        def version(one: str) -> int:
            with server.http() as http:
                return int(http.get(f"/api/completions/{one}").json()["version"])

        def roll(policy: str) -> None:
            """Rollouts, one after another, each of which must be answered by one version's weights."""
            number = 0
            try:
                while not stop.is_set():
                    rollout, number = f"{policy}-{number}", number + 1
                    said = [ask(policy, "after 0.02 who", rollout) for _ in range(CALLS)]
                    (used,) = {version(one) for one, _ in said}
                    expected = weights(str(server.home.policies / policy / "versions" / str(used)))
                    assert {text for _, text in said} == {expected}
                    answers[policy, used] += 1
                    with server.http() as http:
                        http.delete(f"/api/rollouts/{rollout}")
            except AssertionError as error:
                failures.append(f"{policy}: {error}")

        def step(policy: str) -> str:
            refs = [{"id": f"t{r}", "reward": r, "completions": [ask(policy, "say aaa")[0]]} for r in (0.0, 1.0)]
            body = {"groups": [{"scenario_id": "s", "trajectories": refs}], "config": {"lr": 1e-2}}
            with server.http() as http:
                return str(http.post(f"/api/policies/{policy}/steps", json=body).json()["id"])

        with server.http() as http:
            for seed, policy in enumerate(POLICIES):
                assert http.post("/api/policies", json={"name": policy, "seed": seed}).status_code == 201
        threads = [threading.Thread(target=roll, args=(policy,)) for policy in POLICIES]
        for thread in threads:
            thread.start()
        try:
            for job_id in [step(policy) for policy in POLICIES]:
                with server.http() as http:
                    job = http.get(f"/api/jobs/{job_id}", params={"wait": 60}).json()
                assert job["status"] == "succeeded", job
                assert job["result"]["version"] == 1
            seen = Counter(answers)
            while set(POLICIES) - {policy for policy, used in answers - seen if used == 1} and not failures:
                stop.wait(0.05)
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
        state = server.engine
    assert failures == []
    assert state["most_loaded"] <= SLOTS
    assert len({weights(str(tmp_path / "policies" / policy / "versions" / "1")) for policy in POLICIES}) == 8
    assert {version for _, version in answers} == {0, 1}
