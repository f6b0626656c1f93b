"""Records of remote runs wait for their rollouts: for a while, within a limit, and for their own rollout only."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx
import pytest

from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.server.remote_runs import RemoteRunBuffer
from trainer_server.wire import NotStored


async def test_a_record_is_there_when_its_run_has_ended() -> None:
    records = RemoteRunBuffer(900.0)
    assert await records.get("ro-1", "rc-1", 0.0) is None
    records.put("ro-1", "rc-1", "tr-1", None)
    assert await records.get("ro-1", "rc-1", 0.0) == ([], False)
    waiting = asyncio.create_task(records.get("ro-1", "rc-1", 30.0))
    await asyncio.sleep(0)
    records.put("ro-1", "rc-2", "tr-9", b"{}")
    records.put("ro-1", "rc-1", "tr-1", b"{1}")
    assert await asyncio.wait_for(waiting, PATIENCE) == ([b"{1}"], True)
    assert await records.get("ro-1", "rc-1", 0.0) == ([b"{1}"], True), "until the rollout ends"
    assert await records.get("ro-2", "rc-1", 0.0) is None


async def test_runs_of_one_call_are_in_the_order_of_their_beginning() -> None:
    """A LangGraph server that tries again makes a second run."""
    records = RemoteRunBuffer(900.0)
    records.put("ro", "rc", "first", None)
    records.put("ro", "rc", "second", None)
    records.put("ro", "rc", "second", b"2")
    assert await records.get("ro", "rc", 0.01) == ([b"2"], False)
    records.put("ro", "rc", "first", b"1")
    records.put("ro", "rc", "first", None)
    assert await records.get("ro", "rc", 0.0) == ([b"1", b"2"], True), "news that comes late changes nothing"


async def test_records_are_forgotten_with_their_rollout_or_after_a_while() -> None:
    now = [1000.0]
    records = RemoteRunBuffer(900.0, clock=lambda: now[0])
    records.put("ro-1", "rc", "run", b"1")
    records.put("ro-2", "rc", "run", b"22")
    records.drop({"ro-1", "unknown"})
    assert await records.get("ro-1", "rc", 0.0) is None
    now[0] += 901
    records.put("ro-3", "rc", "run", b"3")
    assert await records.get("ro-2", "rc", 0.0) is None
    records.drop({"ro-3"})
    assert (records._bytes, records._of_rollout) == (0, {})


async def test_more_records_than_fit_are_refused_and_none_is_lost() -> None:
    records = RemoteRunBuffer(900.0, most_bytes=1024)
    records.put("ro-1", "rc", "run", b"12345678")
    with pytest.raises(NotStored, match="run fewer rollouts at once"):
        records.put("ro-1", "rc", "run", b"12345678" * 10)
    with pytest.raises(NotStored, match="run fewer rollouts at once"):
        records.put("ro-2", "rc", "run", b"123")
    assert await records.get("ro-1", "rc", 0.0) == ([b"12345678"], True)
    records.drop({"ro-1"})
    records.put("ro-2", "rc", "run", b"123")


async def test_runs_that_only_began_take_memory_too() -> None:
    records = RemoteRunBuffer(900.0, most_bytes=2**20)

    def put(*ids: str) -> bool:
        with suppress(NotStored):
            records.put(*ids, None)
            return True
        return False

    assert sum(put("ro", f"{'c' * 60_000}{number}", "run") for number in range(1500)) == 17
    records.drop({"ro"})
    assert sum(put("ro", "rc", f"run-{number}") for number in range(1500)) == 1037
    records.drop({"ro"})
    assert records._bytes == 0


def test_the_routes(server: TrainerServer) -> None:
    path = "/api/rollouts/ro-routes/records/rc-1"
    with server.http() as http:
        assert http.get(path).status_code == 404
        assert http.put(f"{path}/tr-1").status_code == 204
        assert http.get(path).json() == {"ended": False, "records": []}
        for body in (b"[]", b"{", b"[" * 100_000, b'{"a": NaN}', b'{"a": 1e999}', b'{"a": "\xff"}'):
            refused = http.put(f"{path}/tr-1", content=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_record")
        for ids in (("r" * 201, "c", "r"), ("ro", "c" * 60_000, "r"), ("ro", "c", "r" * 201)):
            assert http.put("/api/rollouts/{}/records/{}/{}".format(*ids)).status_code == 422
        assert http.put(f"{path}/tr-1", content=b'{"a": 1}').status_code == 204
        assert http.get(path, params={"wait": 30}).json() == {"ended": True, "records": [{"a": 1}]}
        assert http.get(path, params={"wait": 31}).status_code == 422
        assert http.post("/api/rollouts/release", json=["ro-routes"]).status_code == 204
        assert http.get(path).status_code == 404
    assert httpx.get(f"{server.url}{path}").status_code == 401
    assert httpx.put(f"{server.url}{path}/tr-1", content=b"{}").status_code == 401
