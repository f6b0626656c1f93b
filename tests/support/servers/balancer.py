"""A load balancer in front of servers: HAProxy of Debian's packages, with the configuration of the documentation."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.patience import PATIENCE
from trainer_server.engines.vllm.command import free_port

_PAGE = Path(__file__).parents[3] / "docs/operating/fleet.md"


def documented(name: str) -> str:
    """The configuration of a balancer in the documentation.

    Args:
        name: The word before its block: `HAProxy` or `nginx`.
    """
    block = re.search(rf"{name}:\n\n```\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert block, f"{_PAGE} has no configuration of {name}"
    return block[1]


@contextmanager
def haproxy(directory: Path, servers: Sequence[str]) -> Iterator[str]:
    """HAProxy, once it answers. The test is skipped where it is not installed.

    Args:
        directory: For its configuration and its log.
        servers: HOST:PORT of the server that trains and of a gateway, without TLS.

    Returns:
        Its address.
    """
    binary = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    if binary is None:
        pytest.skip("needs HAProxy: apt-get install haproxy")
    port = free_port()
    configuration = _replaced(
        documented("HAProxy"),
        {
            r"art\.example\.com": "127.0.0.1",
            r":443 ssl crt \S+": f"127.0.0.1:{port}",
            r"10\.0\.0\.1:8400(.*) ssl verify required ca-file \S+": rf"{servers[0]}\1",
            r"10\.0\.0\.2:8400(.*) ssl verify required ca-file \S+": rf"{servers[1]}\1",
        },
    )
    file, log = directory / "haproxy.cfg", directory / "haproxy.log"
    file.write_text(configuration)
    checked = subprocess.run([binary, "-c", "-f", file], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr, checked.stderr
    with log.open("wb") as output:
        process = subprocess.Popen([binary, "-db", "-f", file], stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + PATIENCE
            while not _ready(url):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield url
        finally:
            process.kill()
            process.wait(PATIENCE)


def _replaced(text: str, places: Mapping[str, str]) -> str:
    """A text with the places that differ on this machine."""
    for pattern, instead in places.items():
        text, count = re.subn(pattern, instead, text)
        assert count, f"{pattern} is not in {_PAGE}"
    return text


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False
