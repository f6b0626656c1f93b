"""Completions, groups and jobs as a client without our library asks for them: over HTTP."""

from __future__ import annotations

from typing import Any

import httpx


def ask(http: httpx.Client, content: str, model: str = "p", rollout: str | None = None) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 20}
    headers = {"X-ART-Rollout": rollout} if rollout else {}
    answer = http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def groups(http: httpx.Client, *rewards: float | None, model: str = "p") -> list[dict[str, Any]]:
    made = [
        {"id": f"t{i}", "reward": reward, "completions": [ask(http, f"say {i}{i}{i}", model)]}
        for i, reward in enumerate(rewards)
    ]
    return [{"scenario_id": "s", "trajectories": made}]


def finish(http: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 202, answer.text
    for _ in range(6):
        job = http.get(f"/api/jobs/{answer.json()['id']}", params={"wait": 50}).json()
        if job["status"] in ("succeeded", "failed"):
            return dict(job)
    raise TimeoutError(job)


def version_of(http: httpx.Client, one: str) -> int:
    return int(http.get(f"/api/completions/{one}").json()["version"])


def step(http: httpx.Client, policy: str) -> int:
    made = http.post(f"/api/policies/{policy}/steps", json={"groups": groups(http, 0.0, 1.0, model=f"{policy}@latest")})
    return int(finish(http, made)["result"]["version"])


def answers(http: httpx.Client, model: str, **headers: str) -> str:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "say x"}], "max_tokens": 9}
    return str(http.post("/v1/chat/completions", json=body, headers=headers).json()["model"])
