"""Which addresses are asked by a proxy of the environment, what messages tell of it, and NO_PROXY of programs."""

from __future__ import annotations

import os

import pytest

from tests.support.proxies.refusing_proxy import without_proxies
from trainer_server.common.proxies import exempt_loopback, loopback_exemption, proxies, proxy_of, remedy

PROXY = "http://proxy.corp:3128"


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    without_proxies(monkeypatch)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_loopback_is_asked_directly_and_nothing_else(monkeypatch: pytest.MonkeyPatch, variable: str, host: str) -> None:
    monkeypatch.setenv(variable, PROXY)
    assert proxy_of(f"http://{host}:8400/v1") is None
    assert str(proxy_of("http://art.example:8400")) == f"{PROXY} ({variable})"


def test_the_scheme_of_the_address_counts_more_than_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "secure.corp:8080")
    assert proxy_of("http://art.example") is None
    monkeypatch.setenv("ALL_PROXY", PROXY)
    assert str(proxy_of("https://art.example")) == "http://secure.corp:8080 (https_proxy)"
    assert str(proxy_of("http://art.example")) == f"{PROXY} (ALL_PROXY)"


@pytest.mark.parametrize(
    ("no_proxy", "direct"),
    [
        ("*", True),
        ("corp, *", True),
        ("art.example", True),
        (".example", True),
        ("*.example", True),
        ("EXAMPLE", True),
        ("art.example:8400", True),
        ("art.example:80", False),
        ("t.example", False),
        ("http://art.example", True),
        ("", False),
        ("[", False),
    ],
)
def test_names_of_no_proxy(monkeypatch: pytest.MonkeyPatch, no_proxy: str, direct: bool) -> None:
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert (proxy_of("http://art.example:8400/health") is None) == direct


@pytest.mark.parametrize(
    ("no_proxy", "url", "direct"),
    [
        ("10.0.0.0/8", "http://10.1.2.3:8400", True),
        ("10.0.0.0/8", "http://11.1.2.3:8400", False),
        ("10.1.2.3", "http://10.1.2.3", True),
        ("10.1.2.3:8400", "http://10.1.2.3:8400", True),
        ("10.1.2.3:8400", "http://10.1.2.3", False),
        ("fd00::/8", "http://[fd00::1]:8400", True),
        ("[fd00::1]:8400", "http://[fd00::1]:8400", True),
    ],
)
def test_addresses_of_no_proxy(monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str, direct: bool) -> None:
    monkeypatch.setenv("http_proxy", PROXY)
    monkeypatch.setenv("no_proxy", no_proxy)
    assert (proxy_of(url) is None) == direct


@pytest.mark.parametrize("password", ["secret", "se/cr@et", "se:cret#"])
def test_no_text_of_a_proxy_has_its_password(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://me:{password}@proxy.corp:3128/")
    (proxy,) = proxies()
    assert str(proxy) == f"{PROXY} (HTTP_PROXY)"
    assert repr(proxy) == "Proxy(source='HTTP_PROXY')"


def test_the_remedy_keeps_what_no_proxy_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert remedy("http://art.example:8400/v1") == "if art.example needs no proxy, set NO_PROXY=art.example"
    monkeypatch.setenv("no_proxy", "corp")
    assert remedy("http://art.example").endswith("set no_proxy=$no_proxy,art.example")


@pytest.mark.parametrize(
    ("environment", "exemption"),
    [
        ({}, {}),
        ({"NO_PROXY": "corp"}, {}),
        ({"HTTP_PROXY": ""}, {}),
        ({"HTTP_PROXY": PROXY}, dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1,127.0.0.0/8")),
        (
            {"all_proxy": PROXY, "NO_PROXY": "corp, localhost"},
            dict.fromkeys(("no_proxy", "NO_PROXY"), "corp,localhost,127.0.0.1,::1,127.0.0.0/8"),
        ),
        ({"HTTPS_PROXY": PROXY, "no_proxy": "*", "NO_PROXY": "*"}, {}),
    ],
)
def test_no_proxy_of_programs_has_loopback_where_there_is_a_proxy(
    environment: dict[str, str], exemption: dict[str, str]
) -> None:
    assert loopback_exemption(environment) == exemption
    assert loopback_exemption({**environment, **exemption}) == {}


def test_a_process_that_exempts_loopback_keeps_its_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "corp")
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    exempt_loopback()
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "corp,localhost,127.0.0.1,::1,127.0.0.0/8"
    assert proxy_of("https://huggingface.co") is not None
