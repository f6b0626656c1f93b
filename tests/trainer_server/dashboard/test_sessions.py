"""Logins: what a cookie opens, how long, and for whose requests."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from trainer_server.dashboard.sessions import SECONDS, Sessions
from trainer_server.server.access.tokens import Keyring

OWN = {"Sec-Fetch-Site": "same-origin"}


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def holds(sessions: Sessions, value: str, method: str = "GET", path: str = "/ui/runs", **headers: str) -> bool:
    found = sessions.token(method, path, Headers({"Cookie": f"x=1; {sessions.cookie}={value}", **headers}))
    return found is not None


def login(sessions: Sessions) -> str:
    found = sessions.login(" secret\n", "127.0.0.1")
    assert found is not None
    return found[1]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(Keyring("secret"), clock)


def test_the_token_opens_for_some_hours(sessions: Sessions, clock: Clock) -> None:
    value = login(sessions)
    assert holds(sessions, value)
    assert holds(Sessions(Keyring("secret"), clock), value), "a restart ends no login"
    assert not holds(Sessions(Keyring("other"), clock), value), "another token does"
    clock.now += SECONDS + 1
    assert not holds(sessions, value)


@pytest.mark.parametrize(
    "value", ["", ".", "9999999999.", "9999999999.00", "9e9.x", "é.é", "9999999999.00.server-key", "1.é.server-key"]
)
def test_other_values_open_nothing(sessions: Sessions, value: str) -> None:
    headers = Headers(raw=[(b"cookie", f"{sessions.cookie}={value}".encode())])
    assert sessions.token("GET", "/", headers) is None


def test_a_later_end_needs_another_signature(sessions: Sessions) -> None:
    value = login(sessions)
    end, _, rest = value.partition(".")
    assert not holds(sessions, f"{int(end) + 1}.{rest}")


@pytest.mark.parametrize(
    ("path", "opens"),
    [
        ("/", True),
        ("/ui/runs", True),
        ("/api/policies", True),
        ("/v1/chat/completions", False),
        ("/rollouts/a/v1/messages", False),
        ("/uix", False),
    ],
)
def test_it_counts_for_pages_and_control_api_only(sessions: Sessions, path: str, opens: bool) -> None:
    assert holds(sessions, login(sessions), path=path) is opens


@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({}, False),
        (OWN, True),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:8400", "Host": "localhost:8400"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Origin": "http://localhost:8400", "Host": "localhost:8400"}, True),
        ({"Origin": "http://localhost:3000", "Host": "localhost:8400"}, False),
        ({"Origin": "null", "Host": "localhost:8400"}, False),
    ],
)
def test_a_change_must_come_from_a_page_of_this_server(
    sessions: Sessions, headers: dict[str, str], taken: bool
) -> None:
    value = login(sessions)
    for method in ("POST", "PUT", "DELETE"):
        assert holds(sessions, value, method, "/api/policies", **headers) is taken


def test_other_pages_reach_no_api_by_the_cookie(sessions: Sessions) -> None:
    value = login(sessions)
    for site, opens in (("same-origin", True), ("none", True), ("same-site", False), ("cross-site", False)):
        assert holds(sessions, value, path="/api/policies", **{"Sec-Fetch-Site": site}) is opens
    assert holds(sessions, value, path="/ui/runs", **{"Sec-Fetch-Site": "same-site"}), "a link may lead here"


def test_wrong_tokens_are_counted_by_address_and_a_right_one_counts_at_any_time(
    sessions: Sessions, clock: Clock
) -> None:
    for number in range(11):
        assert not sessions.too_many("10.0.0.1"), number
        assert sessions.login("guess", "10.0.0.1") is None
    assert sessions.too_many("10.0.0.1")
    assert not sessions.too_many("10.0.0.2")
    assert sessions.login("secret", "10.0.0.1") is not None
    clock.now += 61
    assert not sessions.too_many("10.0.0.1")


def test_addresses_that_one_client_may_have_count_together_and_are_not_all_remembered(sessions: Sessions) -> None:
    for number in range(5000):
        sessions.login("guess", f"2001:db8::{number:x}")
        sessions.login("guess", f"10.0.{number // 250}.{number % 250}")
        sessions.login("guess", f"2001:db8:{number:x}::1")
    assert len(sessions._wrong) == 1000
    for number in range(20):
        sessions.login("guess", f"2001:db9::{number:x}")
    assert sessions.too_many("2001:db9::ffff")


def test_an_ipv4_address_counts_by_itself_in_a_socket_that_takes_both(sessions: Sessions) -> None:
    for _ in range(11):
        sessions.login("guess", "::ffff:10.0.0.1")
    assert sessions.too_many("::ffff:10.0.0.1")
    assert not sessions.too_many("::ffff:10.0.0.2")


@pytest.mark.parametrize("other", ['theme={"mode":"dark"}', "a[b]=1", "flag", "=v", "x=a b c", "é=é"])
def test_cookies_of_other_programs_on_the_host_end_no_login(sessions: Sessions, other: str) -> None:
    value = login(sessions)
    for text in (f"{other}; {sessions.cookie}={value}", f"{sessions.cookie}={value}; {other}"):
        assert sessions.token("GET", "/ui/runs", Headers(raw=[(b"cookie", text.encode("latin-1"))])) is not None


def test_servers_on_one_host_have_cookies_of_their_own() -> None:
    assert Sessions(Keyring("one")).cookie != Sessions(Keyring("two")).cookie
