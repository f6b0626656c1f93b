"""Completions of the ledger over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from art_langgraph import TrainerClient
from tests.support.homes.ledger_rows import row
from tests.support.servers.serving import serving
from trainer_server.common import Home
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.server.routes import completions
from trainer_server.wire import ServerError


async def test_many_completions_are_found_in_answers_of_a_bounded_size(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asks again, for fewer."""
    monkeypatch.setattr(completions, "MOST_ANSWER", 50_000)
    config = ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make")
    app = create_app(config, "key")
    ledger, reads = app.state.server.ledger, list[int]()
    request = {"messages": [{"role": "user", "content": "x" * 6000}]}
    huge = row("huge").model_copy(update={"request": {"messages": [{"role": "user", "content": "x" * 90_000}]}})
    ids = [f"c-{at}" for at in range(130)]
    await ledger.add(*[row(one).model_copy(update={"request": request}) for one in ids], huge)
    wanted = [*ids[:70], "unknown", "huge", *ids[70:]]
    with serving(app) as url:
        async with TrainerClient(url, "key") as trainer:
            rows = await trainer.completions(wanted)
            assert list(rows) == [one for one in wanted if one != "unknown"]
            assert rows["huge"].request == huge.request
            read = ledger.read
            monkeypatch.setattr(ledger, "read", lambda ids: (reads.append(len(ids)), read(ids))[1])
            with pytest.raises(ServerError, match="ask for fewer than 130 at once") as refused:
                await trainer._request("POST", "/api/completions/find", json={"ids": ids})
    assert (refused.value.status, refused.value.code) == (413, "answer_too_large")
    assert reads == [8], "what is too much was not read"
