"""The real vLLM and the trainer on one GPU, by turns. Skipped, and said to be skipped, where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from art_examples.quickstart.server_process import trainer_server

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def test_adapters_and_answers_outlive_the_turns(tmp_path: Path) -> None:
    options = ("--share-gpu", "--max-rank", "8", "--engine-args", "--max-model-len 2048 --gpu-memory-utilization 0.8")
    with trainer_server(tmp_path, tmp_path / "server.log", print, *options) as connection:
        headers = {"Authorization": f"Bearer {connection.api_key}"}
        with httpx.Client(base_url=connection.url, headers=headers, timeout=300) as http:
            assert http.post("/api/policies", json={"name": "p"}).status_code == 201
            before = say(http, "p@0", temperature=0)["choices"][0]["message"]
            for version in (1, 2):
                metrics = step(http, version)
                assert metrics["logp_gap"] < 0.1, metrics
            assert say(http, "p@0", temperature=0)["choices"][0]["message"] == before
            assert say(http, "p")["model"] == "p@2"
            assert [one["ready"] for one in http.get("/api/engines").json()["engines"]] == [True]


def say(http: httpx.Client, model: str, **options: Any) -> dict[str, Any]:
    body = {"model": model, "max_tokens": 16, "messages": [{"role": "user", "content": "Name a sea."}], **options}
    return dict(http.post("/v1/chat/completions", json=body).raise_for_status().json())


def step(http: httpx.Client, version: int) -> dict[str, Any]:
    refs = [{"id": f"t{reward}", "reward": reward, "completions": [say(http, "p")["id"]]} for reward in range(4)]
    body = {"groups": [{"scenario_id": "s", "trajectories": refs}], "config": {"lr": 1e-3}}
    job = http.post("/api/policies/p/steps", json=body).raise_for_status().json()
    while (found := http.get(f"/api/jobs/{job['id']}", params={"wait": 50}).json())["status"] in ("queued", "running"):
        pass
    assert (found["status"], found["result"]["version"]) == ("succeeded", version), found
    return dict(found["result"]["metrics"])
