"""What `connect` finds at an address: the real server, and what is none."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art_langgraph.cli.server_check import check_address, check_token, series
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.common import Connection
from trainer_server.server.access.tokens import Scope, TokenRepository
from trainer_server.wire import ConfigError, ServerUnreachable


def test_a_server_that_answers_is_found_by_its_root(server: TrainerServer) -> None:
    assert check_address(f"{server.url}/v1/") == server.url
    token = check_token(Connection(server.url, TOKEN))
    assert (token.name, token.scope, token.version) == ("server-key", "admin", version("art-langgraph"))


@pytest.mark.parametrize("url", ["http://art.example.com:8400", "http://10.0.0.2:8400/v1", "HTTP://10.0.0.2"])
def test_another_machine_is_not_asked_unencrypted(url: str) -> None:
    with pytest.raises(ConfigError, match=r"would cross the network unencrypted.*ssh -L 8400.*--insecure"):
        check_address(url)


def test_where_nothing_answers_that_is_said() -> None:
    with pytest.raises(ServerUnreachable, match=r"no trainer server answers at http://127\.0\.0\.1:9 .*Is it running"):
        check_address("http://127.0.0.1:9")
    with pytest.raises(ServerUnreachable, match=r"no trainer server answers at http://nowhere\.invalid"):
        check_address("http://nowhere.invalid", insecure=True)


def test_something_else_gets_no_token_and_is_named() -> None:
    asked = []

    async def page(request: Request) -> Response:
        asked.append((request.url.path, request.headers.get("Authorization")))
        return Response("<html>", 200)

    app = Starlette(routes=[Route("/{path:path}", page)])
    with serving(app) as url, pytest.raises(ConfigError, match=r"is no trainer server: .*/health answered 200"):
        check_address(url)
    assert asked == [("/health", None)]


def test_a_server_that_has_another_name_says_how_it_is_told(server: TrainerServer) -> None:
    url = server.url.replace("127.0.0.1", "localhost.localdomain")
    try:
        with pytest.raises(ConfigError, match=r"not known as 'localhost\.localdomain.*--allowed-host"):
            check_address(url, insecure=True)
    except ServerUnreachable:
        pytest.skip("this machine does not resolve localhost.localdomain")


def test_tokens_that_do_not_count_are_refused_with_the_servers_reason(server: TrainerServer) -> None:
    for token, words in (
        ("art-nobody", "the bearer token is wrong, or was revoked"),
        (TokenRepository(server.home).create("old", Scope.train, seconds=-1), "the token 'old' expired"),
        (TokenRepository(server.home).create("gpu", Scope.engine), "needs a token of scope rollout"),
    ):
        with pytest.raises(ConfigError, match=f"{server.url} does not take the token: .*{words}") as raised:
            check_token(Connection(server.url, token))
        assert token not in str(raised.value)


@pytest.mark.parametrize(("said", "words"), [
    ({"name": "a", "scope": "train", "version": "0.99.3"}, r"has art-langgraph 0\.99\.3.*'art-langgraph==0\.99\.\*'"),
    ({"name": "a", "scope": "train", "version": "7.2"}, r"'art-langgraph==7\.\*'"),
    ({"token": "a"}, "does not say what the token is for"),
])  # fmt: skip
def test_another_version_is_refused_with_the_remedy(said: dict[str, str], words: str) -> None:
    async def token(_request: Request) -> Response:
        return JSONResponse(said)

    with serving(Starlette(routes=[Route("/api/token", token)])) as url, pytest.raises(ConfigError, match=words):
        check_token(Connection(url, "key"))


def test_before_1_0_a_minor_version_is_another_one() -> None:
    assert series("0.1.0") == series("0.1.7") != series("0.2.0")
    assert series("1.0") == series("1.9.3") != series("2")
    assert series("0.2rc1") == (0, 2)
