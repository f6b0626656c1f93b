"""What processes listen on, as the kernel sees it."""

from __future__ import annotations

from ipaddress import ip_address

import psutil


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    """Addresses and ports that a process and its descendants listen on."""
    return [
        (connection.laddr.ip, connection.laddr.port)
        for one in (process, *process.children(recursive=True))
        for connection in one.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def exposed(sockets: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those that are reached from other machines."""
    return [(ip, port) for ip, port in sockets if not ip_address(ip.removeprefix("::ffff:")).is_loopback]
