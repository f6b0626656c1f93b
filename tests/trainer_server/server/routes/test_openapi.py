"""schemathesis over the contract of the HTTP API: no route fails on what it says that it takes, or on anything else.

schemathesis has an environment of its own: it brings a plugin that every run of pytest would load.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.environments import environment
from tests.support.fuzz_counts import DRAWN, of_schemathesis
from tests.support.fuzzing import CHANCE, FACTOR, no_traceback
from tests.support.homes.jobs import groups
from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TrainerServer, trainer_server_on

pytestmark = pytest.mark.servers

EXAMPLES = 8
"""Requests to each route by chance, besides those at the limits of what it takes."""
LASTING = ("DELETE /api/policies/{name}", "DELETE /api/policies/{name}/versions/{number}", "POST /api/policies")
"""Routes that are left out where requests name what is there: after the first of them it is gone, or many policies are
made."""
CONFIG = """
workers = 1
continue-on-failure = true
warnings = false
request-timeout = {timeout}
headers = {{ Authorization = "Bearer {token}" }}

[checks]
enabled = false
not_a_server_error.enabled = true
unsupported_method.enabled = true

[phases.stateful]
enabled = false

[parameters]
"query.wait" = 0
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[TrainerServer]:
    """A server with a policy, a run and a job."""
    with trainer_server_on(tmp_path_factory.mktemp("home"), base_model) as running:
        with running.http() as http:
            assert http.post("/api/policies", json={"name": "agent"}).status_code == 201
            assert http.put("/api/rollouts/r-1", json={"scenario": "s"}).status_code == 200
            made = http.post("/api/policies/agent/steps", json={"groups": groups(http, 0.0, 1.0, model="agent")})
            assert made.status_code == 202, made.text
        yield running


def config(server: TrainerServer, *, known: bool) -> str:
    """known: whether requests name the policy, the run and the job that are there."""
    text = CONFIG.format(timeout=int(PATIENCE), token=server.headers["Authorization"].removeprefix("Bearer "))
    if not known:
        return text
    with server.http() as http:
        job = http.get("/api/jobs").json()["jobs"][0]["id"]
    names = {"name": "agent", "number": 0, "rollout": "r-1", "job_id": job, "call": "c-1", "run": "run-1"}
    lines = [f'"path.{name}" = {json.dumps(value)}' for name, value in names.items()]
    without = [f"[[operations]]\ninclude-name = {json.dumps(name)}\nenabled = false" for name in LASTING]
    return "\n".join([text.rstrip(), *lines, "", *without, ""])


@pytest.mark.parametrize("known", [True, False], ids=["of what is there", "of any name"])
def test_no_request_makes_a_route_fail(
    server: TrainerServer,
    tmp_path: Path,
    known: bool,
    record_property: pytest.RecordProperty,
    request: pytest.FixtureRequest,
) -> None:
    program = environment("schemathesis", "schemathesis>=4.32,<5") / "schemathesis"
    (tmp_path / "schemathesis.toml").write_text(config(server, known=known))
    line = [program, "--config-file", tmp_path / "schemathesis.toml", "run", f"{server.url}/openapi.json"]
    line += ["--phases", "coverage,fuzzing" if known or CHANCE else "fuzzing"]
    line += ["--max-examples", str(int(EXAMPLES * FACTOR)), *([] if CHANCE else ["--generation-deterministic"])]
    with no_traceback():
        done = subprocess.run([*map(str, line)], cwd=tmp_path, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    if CHANCE:
        record_property(DRAWN, (request.node.location[0], of_schemathesis(done.stdout)))
    with server.http() as http:
        assert http.get("/ready").status_code == 200
