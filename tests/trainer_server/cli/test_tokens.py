"""`art-langgraph tokens` and `audit`, on the home of a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import art
from trainer_server.common import Home
from trainer_server.server.access.tokens import Keyring, Scope, TokenRepository
from trainer_server.wire import ConfigError


def test_tokens_are_created_listed_and_revoked_and_the_log_says_who_did_it(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    wanted = ["tokens", "create", "alice", "--scope", "rollout", "--expires", "30d", "--tokens-per-minute", "5000"]
    made = art(*wanted, "--home", home)
    assert made.exit_code == 0, made.output
    secret = made.stdout.splitlines()[0]
    token = Keyring("key", TokenRepository(Home(Path(home)))).find(secret)
    assert token is not None
    assert (token.name, token.scope, token.tokens_per_minute) == ("alice", Scope.rollout, 5000)
    assert token.expires == token.created + 30 * 86400

    (listed,) = json.loads(art("tokens", "list", "--json", "--home", home).stdout)
    assert (listed["name"], listed["scope"], listed["last_used"]) == ("alice", "rollout", None)
    assert "digest" not in listed
    table = art("tokens", "list", "--home", home).stdout
    assert "alice" in table
    assert secret not in table

    words = ["tokens", "create", "bob", "--owner", "bob@x.org", "--scope", "train", "--json", "--home", home]
    other = json.loads(art(*words).stdout)
    assert (other["name"], other["owner"], other["scope"]) == ("bob", "bob@x.org", "train")
    assert len(other["token"]) > 20
    assert [one["owner"] for one in json.loads(art("tokens", "list", "--json", "--home", home).stdout)] == [
        None,
        "bob@x.org",
    ]
    assert "bob@x.org" in art("tokens", "list", "--home", home).stdout
    told = json.loads(art("tokens", "revoke", "bob", "--json", "--home", home).stdout)
    assert told == {"name": "bob", "scope": "train", "revoked": True}
    assert "is revoked" in art("tokens", "revoke", "alice", "--home", home).stdout
    assert json.loads(art("tokens", "list", "--json", "--home", home).stdout) == []
    again = art("tokens", "revoke", "alice", "--home", home)
    assert isinstance(again.exception, ConfigError)

    log = [json.loads(line) for line in art("audit", "--json", "--since", "1h", "--home", home).stdout.splitlines()]
    assert [(one["action"], one["target"], one["result"]) for one in log] == [
        ("token.create", "alice, scope rollout", "ok"),
        ("token.create", "bob of bob@x.org, scope train", "ok"),
        ("token.revoke", "bob", "ok"),
        ("token.revoke", "alice", "ok"),
        ("token.revoke", "alice", "refused"),
    ]
    assert all(one["who"].startswith("cli:") for one in log)
    assert secret not in art("audit", "--home", home).stdout


def test_wrong_durations_are_refused_with_what_helps(tmp_path: Path) -> None:
    made = art("tokens", "create", "a", "--scope", "train", "--expires", "soon", "--home", str(tmp_path / "home"))
    assert "expected a duration such as 30m, 12h, 30d or 2w" in str(made.exception)
    made = art("tokens", "create", "a", "--scope", "train", "--expires", "0d", "--home", str(tmp_path / "home"))
    assert "the token would never count" in str(made.exception)
    assert "expected 30m, 2h, 7d, or a date" in str(art("audit", "--since", "x", "--home", str(tmp_path)).exception)


def test_a_misspelt_home_gets_no_token(tmp_path: Path) -> None:
    right, wrong = tmp_path / "art-home", tmp_path / "art-hoem"
    words = ["tokens", "create", "a", "--scope", "train", "--home"]
    made = art(*words, str(right))
    assert f"{right} did not exist, and is made: art-langgraph serve --home {right}" in made.stderr
    for home, message in (
        (wrong, f"{wrong} does not exist (did you mean {right}?)"),
        (tmp_path / "no" / "home", f"make it first: mkdir -p {tmp_path / 'no' / 'home'}"),
    ):
        error = art(*words, str(home)).exception
        assert isinstance(error, ConfigError)
        assert message in str(error)
        assert not home.exists()
    assert "does not exist" in str(art("tokens", "revoke", "a", "--home", str(tmp_path / "other")).exception)
    assert not (tmp_path / "other").exists()
    assert art(*words, str(tmp_path / "art-home-2")).exit_code == 1, "near, and not by its number alone"
    assert art(*words, str(tmp_path / "production")).exit_code == 0


@pytest.mark.parametrize("command", [("audit",), ("tokens", "list"), ("tokens", "revoke", "a"), ("backup", "copy")])
def test_a_folder_that_is_no_home_is_refused_and_stays_as_it_is(tmp_path: Path, command: tuple[str, ...]) -> None:
    other = tmp_path / "my data"
    other.mkdir()
    other.chmod(0o755)  # whatever the umask
    (other / "photo").touch()
    for home, words in ((other, "is no home of a server"), (tmp_path / "none", "does not exist")):
        assert words in str(art(*command, "--home", str(home)).exception)
    assert (other.stat().st_mode & 0o777, [path.name for path in other.iterdir()]) == (0o755, ["photo"])
