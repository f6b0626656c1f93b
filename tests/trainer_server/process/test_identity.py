"""The id of a server: made once, and never made up where its file is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_server.common import Home
from trainer_server.process.files import server_id
from trainer_server.wire import ConfigError


def test_it_stays_the_same(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert server_id(home) == server_id(home) != server_id(Home(tmp_path / "other"))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\x00", b"[]", b"{}", b'{"server_id": 5}', b'{"server_id": ""}', b"[" * 100_000]
)
def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    home = Home(tmp_path)
    home.identity.write_bytes(content)
    with pytest.raises(ConfigError, match=r"identity\.json cannot be read as the id of this server .*backup"):
        server_id(home)
    assert home.identity.read_bytes() == content
