"""The home directory of a server, the cache of a user, and to whom the home's token goes."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer_server.common import Connection, Home
from trainer_server.common.home import create_private, is_local, make_directory, server_address, write_private
from trainer_server.wire import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("variables", "cache"),
    [
        ({}, "user/.cache/art-langgraph"),
        ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/art-langgraph"),
        ({"XDG_CACHE_HOME": "relative"}, "user/.cache/art-langgraph"),
        ({"XDG_CACHE_HOME": "{}/xdg", "ART_CACHE": "{}/mine"}, "mine"),
    ],
)
def test_every_home_of_a_user_has_the_same_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], cache: str
) -> None:
    for name in ("ART_HOME", "ART_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert {Home.find().cache, Home(tmp_path / "other").cache} == {tmp_path / cache}


def test_an_address_needs_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_BASE_URL", "127.0.0.1:8400")
    with pytest.raises(ConfigError, match=r"'127\.0\.0\.1:8400' is no address of a server: it must look like https://"):
        Connection.find(api_key="key")


def test_a_new_home_is_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "above" / "home")
    assert home.make_private() is None
    assert mode(home.root) == 0o700
    assert home.make_private() is None


def test_a_home_that_others_could_read_is_made_private_and_that_is_said(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.root.chmod(0o755)
    assert home.make_private() == f"other users could read {home.root} (mode 0755); now only you can (mode 0700)"
    assert mode(home.root) == 0o700


def test_a_home_that_cannot_be_made_private_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.root.chmod(0o750)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)  # as on a file system without modes
    assert "can read" in str(home.make_private())
    assert "cannot be changed" in str(home.make_private())


def test_a_directory_that_has_other_uses_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for shared, bits in ((tmp_path / "user", 0o755), (tmp_path / "tmp", 0o1777)):
        shared.mkdir()
        shared.chmod(bits)
        with pytest.raises(ConfigError, match="name a directory of its own"):
            Home(shared).make_private()
        assert mode(shared) == bits


def test_a_home_that_cannot_be_made_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/a/home cannot be written: .*with --home or ART_HOME"):
        Home(tmp_path / "file" / "a" / "home").make_private()


def test_a_directory_that_may_not_be_written_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_directory(tmp_path / "a" / "b", "ART_CACHE")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write in all directories
    with pytest.raises(ConfigError, match=r"b cannot be written: .*Permission denied.*directory with ART_CACHE"):
        make_directory(tmp_path / "a" / "b", "ART_CACHE")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home of a server that is running on port 8411."""
    for name in ("ART_BASE_URL", "ART_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    (tmp_path / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:8411", "pid": 1}))
    (tmp_path / "token").write_text("secret\n")
    return Home(tmp_path)


@pytest.mark.parametrize(
    "url", [None, "http://127.0.0.1:8411", "http://127.0.0.1:8411/v1/", "http://localhost:8411", "http://[::1]:8411"]
)
@pytest.mark.usefixtures("home")
def test_the_homes_own_server_gets_its_token(url: str | None) -> None:
    assert Connection.find(url).api_key == "secret"


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1",
        "http://127.0.0.1:8400",
        "https://127.0.0.1:8411",
        "http://127.0.0.1.example.com:8411",
        "http://127.0.0.1:8411@example.com",
        "http://localhost:x",
    ],
)
@pytest.mark.parametrize("how", ["argument", "environment"])
@pytest.mark.usefixtures("home")
def test_no_other_address_gets_it(url: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "environment":
        monkeypatch.setenv("ART_BASE_URL", url)
    with pytest.raises(ConfigError) as raised:
        Connection.find(url if how == "argument" else None)
    assert "secret" not in str(raised.value)
    assert url.removesuffix("/v1") in str(raised.value)


@pytest.mark.usefixtures("home")
def test_a_key_that_is_given_goes_where_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Connection.find("http://there:1/v1", "key") == Connection("http://there:1", "key")
    monkeypatch.setenv("ART_API_KEY", "env")
    assert Connection.find("http://there:1").api_key == "env"


def test_a_server_that_is_not_running_is_expected_at_the_default_address(home: Home) -> None:
    home.server.unlink()
    assert Connection.find() == Connection("http://127.0.0.1:8400", "secret")
    assert Connection.find("http://localhost:8400/v1").api_key == "secret"
    with pytest.raises(ConfigError, match="the trainer server at http"):
        Connection.find("http://127.0.0.1:8411")


def test_the_server_of_connect_comes_before_the_homes_own(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Connection("https://art.example.com:8400", "theirs")
    home.connect(there)
    assert mode(home.connection) == 0o600
    assert Connection.find() == there
    assert Connection.find("https://art.example.com:8400/v1") == there
    assert Connection.find("http://127.0.0.1:8411").api_key == "secret", "each server gets its own token"
    for other in ("http://art.example.com:8400", "https://art.example.com", "https://art.example.com:8400@evil.com"):
        with pytest.raises(ConfigError) as raised:
            Connection.find(other)
        assert "theirs" not in str(raised.value)
    monkeypatch.setenv("ART_BASE_URL", "http://127.0.0.1:8411")
    assert Connection.find() == Connection("http://127.0.0.1:8411", "secret")
    monkeypatch.delenv("ART_BASE_URL")
    monkeypatch.setenv("ART_API_KEY", "mine")
    assert Connection.find() == Connection(there.url, "mine")


def test_connecting_again_replaces_and_disconnecting_leaves_nothing(home: Home) -> None:
    home.connect(Connection("http://one", "a"))
    home.connect(Connection("http://two", "b"))
    assert home.read_connection() == Connection("http://two", "b")
    assert [path.name for path in home.root.glob("connection*")] == ["connection.json"]
    assert home.disconnect()
    assert not home.disconnect()
    assert Connection.find().url == "http://127.0.0.1:8411"
    assert list(home.root.glob("connection*")) == []


def test_a_broken_connection_file_is_named_and_not_quoted(home: Home) -> None:
    home.connection.write_text('{"url": "http://there", "key": "theirs"}')
    with pytest.raises(
        ConfigError, match=r"connection\.json cannot be read .*KeyError.*`art-langgraph disconnect`"
    ) as raised:
        Connection.find()
    assert "theirs" not in str(raised.value)


@pytest.mark.parametrize("url", ["", "art.example.com", "ftp://art.example.com", "https://", "https://art:port"])
def test_an_address_that_is_none_is_said(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a server"):
        server_address(url)


def test_an_address_has_neither_a_slash_nor_v1_at_its_end() -> None:
    assert server_address("https://art.example.com:8400/v1/") == "https://art.example.com:8400"
    assert [is_local(url) for url in ("http://localhost:1", "http://[::1]", "http://127.0.0.2", "http://a.b")] == [
        True, True, True, False,
    ]  # fmt: skip


def test_a_broken_server_file_is_named(home: Home) -> None:
    home.server.write_text("{")
    with pytest.raises(ConfigError, match=r"server\.json cannot be read"):
        Connection.find()


def test_a_private_file_is_readable_by_the_user_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    create_private(path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    create_private(path)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_text_of_a_model_is_written_whatever_it_has_in_it(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    for _ in range(2):
        write_private(path, "half \ud83d, ö\u2028")
        assert path.read_bytes() == "half \\ud83d, ö\u2028".encode()
        assert path.stat().st_mode & 0o777 == 0o600


def test_an_empty_token_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ART_API_KEY", raising=False)
    monkeypatch.delenv("ART_BASE_URL", raising=False)
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ConfigError, match="token is empty: delete it"):
        Connection.find(home=tmp_path)


KINDS: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("nowhere"),
    "file": Path.touch,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    ["jobs", "policies", "logs", "audit", "archive", "token", "identity.json", "server.json", "tokens.json", "lock",
     "ledger.sqlite", "rollouts.sqlite"],
)  # fmt: skip
def test_what_is_of_the_wrong_kind_is_named(tmp_path: Path, name: str, kind: str) -> None:
    home = Home(tmp_path / "home")
    home.make_private()
    KINDS[kind](home.root / name)
    expected = "directory" if name in ("jobs", "policies", "logs", "audit", "archive") else "file"
    if kind == expected:
        home.make_private()
        return
    with pytest.raises(ConfigError, match=f"{name} must be a {expected}, and is none: move it away"):
        home.make_private()


def test_a_home_that_is_a_file_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("notes")
    (tmp_path / "home").chmod(0o644)
    with pytest.raises(ConfigError, match="home is no directory"):
        Home(tmp_path / "home").make_private()
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["ledger.sqlite", "rollouts.sqlite"])
def test_a_database_that_was_cut_off_is_named_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path)
    (home.root / name).touch()
    home.check()  # a server was killed in the middle of its first start
    home.identity.write_text("{}")
    with pytest.raises(ConfigError, match=f"{name} is empty, .* Restore a backup"):
        home.check()
    assert (home.root / name).stat().st_size == 0
    (home.root / name).unlink()
    home.check()
