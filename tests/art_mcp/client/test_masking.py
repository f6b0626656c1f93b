"""Secrets that a server was given do not come back in its answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from art_mcp import Cassette, MCPError, connect
from art_mcp.client.connection.sdk import Http, Progress, Stdio, Target
from art_mcp.client.masking import MaskedSource, secrets_of
from art_mcp.worlds.change import Change
from tests.support.mcp.commands import ODD


@pytest.mark.parametrize(
    ("target", "secrets"),
    [
        (Stdio(("s",), {"GITHUB_TOKEN": "ghp_12345678"}), {"ghp_12345678": "[GITHUB_TOKEN]"}),
        (Stdio(("s",), {"apiKey": "k" * 8, "PASSWORD": "short", "GIT_AUTHOR_NAME": "Ada Lovelace"}),
         {"k" * 8: "[apiKey]"}),
        (Stdio(("s",), {"DATABASE": "postgres://ada:p%40ssword1@db/shop"}),
         {"p%40ssword1": "[DATABASE]", "p@ssword1": "[DATABASE]"}),
        (Stdio(("s",), {"DATABASE": "postgres://[::1"}), {}),
        (Http("http://s/mcp", {"Authorization": "Bearer abcdefghij", "Accept": "application/json"}),
         {"Bearer abcdefghij": "[Authorization]", "abcdefghij": "[Authorization]"}),
        (Stdio(("s",), {"GITHUB_PAT": "p" * 9, "PAT": "q" * 9, "SSH_PASSPHRASE": "r" * 9, "githubPat": "s" * 9}),
         {"p" * 9: "[GITHUB_PAT]", "q" * 9: "[PAT]", "r" * 9: "[SSH_PASSPHRASE]", "s" * 9: "[githubPat]"}),
        (Stdio(("s",), {"PATH": "/usr/local/bin", "PATTERN": "longer-than-8", "MONKEYS": "longer-than-8"}), {}),
        (Stdio(("s", "--api-key=" + "k" * 8, "--token", "t" * 8, "--name", "n" * 8, "https://me-me-me:pw-pw-pw@h/x")),
         {"k" * 8: "[api-key]", "t" * 8: "[token]", "pw-pw-pw": "[URL]"}),
        (Stdio(("npx", "mcp-remote", "https://h/x?api_key=abcd%2Fefgh&page=12345678", "--header",
                "Authorization: Bearer abcdefghij")),
         {"Bearer abcdefghij": "[Authorization]", "abcd%2Fefgh": "[api_key]", "abcdefghij": "[Authorization]",
          "abcd/efgh": "[api_key]"}),
        (Http("https://ghp_12345678@h/mcp?access_token=ab+cdefgh&q=12345678#sig=zzzzzzzz"),
         {"ghp_12345678": "[URL]", "ab+cdefgh": "[access_token]", "ab cdefgh": "[access_token]", "z" * 8: "[sig]"}),
        (Http("http://s/mcp", {"Authorization": "Basic YWRhLWFkYS1hZGE6aHVudGVyLWh1bnRlcg=="}),
         {"Basic YWRhLWFkYS1hZGE6aHVudGVyLWh1bnRlcg==": "[Authorization]",
          "YWRhLWFkYS1hZGE6aHVudGVyLWh1bnRlcg==": "[Authorization]",
          "hunter-hunter": "[Authorization]"}),
        (Http("https://ghp_0123456789abcdef:x-oauth-basic@h/mcp"),
         {"ghp_0123456789abcdef": "[URL]", "x-oauth-basic": "[URL]"}),
        (Stdio(("s",), {"OPENAPI_MCP_HEADERS": '{"Authorization": "Bearer abcdefghij", "Accept": ["text/plain"]}'}),
         {"Bearer abcdefghij": "[Authorization]", "abcdefghij": "[Authorization]"}),
        (Stdio(("s", "--header=Authorization: Bearer abcdefghij", "-HX-Api-Key: klmnopqrst",
                "--env=MY_TOKEN=uvwxyzuvwxyz", "-token", "0123456789", "--name", "n" * 20)),
         {"Bearer abcdefghij": "[Authorization]", "uvwxyzuvwxyz": "[MY_TOKEN]", "abcdefghij": "[Authorization]",
          "klmnopqrst": "[X-Api-Key]", "0123456789": "[token]"}),
        (Stdio(("s",), {"STORE": "DefaultEndpointsProtocol=https;AccountName=ada;AccountKey=abcdefghij==;Pwd=klmnopqrs",
                        "DSN": "host=database.example user=postgres password=tuvwxyz0"}),
         {"abcdefghij==": "[AccountKey]", "klmnopqrs": "[Pwd]", "tuvwxyz0": "[password]"}),
        (Http("https://hooks.example/services/T00000000/abcdefghijklmnopqrst1234/mcp"),
         {"abcdefghijklmnopqrst1234": "[URL]"}),
        (Stdio(("s", "--db", "sqlite:////tmp/abcdefghijklmnopqrst1234/a.db", "--about=tokens and passwords")), {}),
        (Stdio(("s", "[" * 5000)), {}),
    ],
)  # fmt: skip
def test_secrets_are_known_by_the_names_of_their_variables(target: Target, secrets: dict[str, str]) -> None:
    assert list(secrets_of(target).items()) == list(secrets.items())


class Telling:
    """A source that answers with what it is asked, or refuses with it."""

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        if method == "refuse":
            raise MCPError(f"not with {params}", failure="limited", code=429)
        if progress:
            await progress(1.0, None, str(params))
        return {"content": [{"text": str(params)}], "structuredContent": dict(params), "isError": False}

    async def changes(self) -> list[Change] | None:
        return []

    async def close(self) -> None:
        pass


async def test_texts_keys_errors_and_progress_name_the_secret_instead() -> None:
    masked = MaskedSource(Telling(), {"hunter2-hunter2": "[PIN_TOKEN]"})
    told: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    answer = await masked.request("tools/call", {"hunter2-hunter2": ["x hunter2-hunter2", 3, None]}, note)
    assert answer["structuredContent"] == {"[PIN_TOKEN]": ["x [PIN_TOKEN]", 3, None]}
    assert answer["isError"] is False
    assert "hunter2" not in str(answer) + str(told)
    with pytest.raises(MCPError, match="PIN_TOKEN") as refused:
        await masked.request("refuse", {"a": "hunter2-hunter2"})
    assert (refused.value.failure, refused.value.code) == ("limited", 429)


def test_secrets_in_the_command_of_a_shell_are_known() -> None:
    secrets = secrets_of(Stdio(("bash", "-c", "SHOP_TOKEN=abcdefghij server --api-key 'klmnopqrst' --city Rotterdam")))
    assert secrets["abcdefghij"] == "[SHOP_TOKEN]"
    assert secrets["klmnopqrst"] == "[api-key]"
    assert "Rotterdam" not in secrets


async def test_secrets_are_masked_as_urls_and_json_spell_them() -> None:
    masked = MaskedSource(Telling(), {'a/b"c d+e': "[TOKEN]"})
    for spelled in ('a/b"c d+e', "a/b%22c%20d%2Be", "a%2Fb%22c%20d%2Be", "a%2Fb%22c+d%2Be", 'a/b\\"c d+e'):
        answer = await masked.request("tools/call", {"text": f"x {spelled} y"})
        assert answer["structuredContent"] == {"text": "x [TOKEN] y"}


@pytest.mark.slow
async def test_a_server_that_tells_its_environment_tells_no_secret(tmp_path: Path) -> None:
    cassette = Cassette(tmp_path / "tape.jsonl", "record")
    env = {"SHOP_TOKEN": "s3cret-of-the-shop", "CITY": "Amsterdam"}
    async with connect([*ODD, "open"], env=env, cassette=cassette) as server:
        result = await server.call("environment", {})
    assert "SHOP_TOKEN=[SHOP_TOKEN]" in result.text
    assert "CITY=Amsterdam" in result.text
    assert "s3cret" not in cassette.path.read_text()
