"""A line between two network namespaces that delays packets, loses some, and can be cut: two machines on one.

Each end is a TUN device. A process of its own reads the packets of each and writes them to the other, as `tc netem`
would delay and drop them; it needs neither that kernel module nor a bridge. Only root may make namespaces.

`python -m testbed.link` is that process.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import selectors
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_NAMESPACES = Path("/run/netns")
_TUN = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI, _CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_MOST_WAITING = 10_000
"""Packets that may be under way in one direction. A line that is full loses what comes."""
_LARGEST = 65_536


def unavailable_reason() -> str | None:
    """Why this machine can have no line; None: it can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if missing := [program for program in ("ip", "nsenter") if shutil.which(program) is None]:
        return f"`{missing[0]}` is missing (Debian's iproute2 and util-linux)"
    if not _TUN.exists():
        return f"there is no {_TUN}"
    probe = Namespace(f"art-probe-{os.getpid()}")
    try:
        probe.make()
    except subprocess.CalledProcessError as error:
        return f"no network namespace can be made: {error.stderr.strip()}"
    probe.delete()
    return None


class Namespace:
    """A network namespace: what runs in it sees only its own devices.

    Args:
        name: Unique on this machine.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def prefix(self) -> tuple[str, ...]:
        """Words before a command line that has it run here."""
        return ("nsenter", f"--net={_NAMESPACES / self.name}")

    def make(self) -> None:
        _ip("netns", "add", self.name)
        _ip("-n", self.name, "link", "set", "lo", "up")

    def delete(self) -> None:
        """Does nothing where there is none."""
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True, check=False)

    def processes(self) -> list[int]:
        """The processes that run here."""
        done = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False)
        return [int(word) for word in done.stdout.split()]

    def run(self, work: Callable[[], T]) -> T:
        """Calls a function in a thread of this namespace, and returns what it returns. Threads that it starts are in
        the namespace too."""
        outcome: list[T] = []
        failure: list[BaseException] = []

        def inside() -> None:
            try:
                enter(self.name)
                outcome.append(work())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=inside, name=f"in {self.name}")
        thread.start()
        thread.join()
        if failure:
            raise failure[0]
        return outcome[0]


def enter(name: str) -> None:
    """Moves the calling thread into a network namespace."""
    with open(_NAMESPACES / name) as file:
        if _LIBC.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


class Link:
    """Two namespaces, `near` and `far`, with a line between them. Use by `with`.

    Args:
        delay: Seconds that a packet takes, in each direction.
        loss: Share of the packets that are lost, in each direction.
        seed: Of which ones.

    Attributes:
        near: One end, at `near_host`.
        far: The other end, at `far_host`.
        packets: That either end had sent when the line was changed last.
        lost: Those of them that did not arrive.
    """

    near_host, far_host = "198.18.0.1", "198.18.0.2"  # addresses for tests of networks (RFC 2544)

    def __init__(self, delay: float = 0.0, loss: float = 0.0, seed: int = 0) -> None:
        self._settings: dict[str, Any] = {"delay": delay, "loss": loss, "cut": False}
        self._seed = seed
        name = f"art-{os.getpid()}-{id(self) % 10_000}"
        self.near, self.far = Namespace(f"{name}-near"), Namespace(f"{name}-far")
        self._process: subprocess.Popen[str] | None = None
        self.packets = self.lost = 0

    def __enter__(self) -> Link:
        try:
            for namespace in (self.near, self.far):
                namespace.make()
            line = [sys.executable, "-m", "testbed.link", self.near.name, self.far.name, str(self._seed)]
            self._process = subprocess.Popen(
                line, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self._set()
            for namespace, host in ((self.near, self.near_host), (self.far, self.far_host)):
                _ip("-n", namespace.name, "address", "add", f"{host}/30", "dev", "line")
                _ip("-n", namespace.name, "link", "set", "line", "txqueuelen", str(_MOST_WAITING), "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate()
        for namespace in (self.near, self.far):
            namespace.delete()

    def processes(self, end: Namespace) -> list[int]:
        """The processes that run at one end, without the one that passes the packets."""
        own = None if self._process is None else self._process.pid
        return [pid for pid in end.processes() if pid != own]

    def set(self, *, delay: float | None = None, loss: float | None = None, cut: bool | None = None) -> None:
        """Changes the line. Packets that are under way arrive as they would have. cut: whether nothing passes."""
        given = {"delay": delay, "loss": loss, "cut": cut}
        self._settings |= {name: value for name, value in given.items() if value is not None}
        self._set()

    def _set(self) -> None:
        """Tells the process; returns when it has heard."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(self._settings) + "\n")
        self._process.stdin.flush()
        self.packets, self.lost = json.loads(self._process.stdout.readline())


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _tun(namespace: str) -> int:
    """A TUN device, `line`, of a namespace, which the calling thread enters: its packets are read and written here."""
    enter(namespace)
    device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"line", _IFF_TUN | _IFF_NO_PI))
    return device


class _Forwarder:
    """Passes packets between two devices, until the standard input ends.

    Args:
        devices: Their file descriptors.
        seed: Of which packets are lost.
    """

    def __init__(self, devices: tuple[int, int], seed: int) -> None:
        self._to = {devices[0]: devices[1], devices[1]: devices[0]}
        self._under_way: dict[int, deque[tuple[float, bytes]]] = {device: deque() for device in devices}
        """By device that gets them: when each is due, and what it is."""
        self._random = random.Random(seed)
        self._delay = self._loss = 0.0
        self._cut = False
        self.packets = self.lost = 0

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for device in self._to:
                selector.register(device, selectors.EVENT_READ)
            selector.register(sys.stdin, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(self._pause())]
                for device in self._to:  # first: what was sent before new settings were told goes by the old ones
                    self._take(device)
                if sys.stdin in ready and not self._told(sys.stdin.readline()):
                    return
                self._deliver()

    def _told(self, line: str) -> bool:
        """Takes new settings, and answers with what has passed. Returns whether there were any."""
        if line:
            settings = json.loads(line)
            self._delay, self._loss, self._cut = settings["delay"], settings["loss"], settings["cut"]
            print(json.dumps([self.packets, self.lost]), flush=True)
        return bool(line)

    def _take(self, device: int) -> None:
        under_way = self._under_way[self._to[device]]
        due = time.monotonic() + self._delay
        while True:
            try:
                packet = os.read(device, _LARGEST)
            except BlockingIOError:
                return
            self.packets += 1
            if self._cut or len(under_way) >= _MOST_WAITING or self._random.random() < self._loss:
                self.lost += 1
            else:
                under_way.append((due, packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        for device, under_way in self._under_way.items():
            while under_way and under_way[0][0] <= now:
                try:
                    os.write(device, under_way.popleft()[1])
                except OSError:  # the device is down, or its queue is full
                    self.lost += 1

    def _pause(self) -> float | None:
        """Seconds until the next packet is due; None: none is under way."""
        due = [under_way[0][0] for under_way in self._under_way.values() if under_way]
        return max(0.0, min(due) - time.monotonic()) if due else None


def main() -> None:
    near, far, seed = sys.argv[1:]
    forwarder = _Forwarder((_tun(near), _tun(far)), int(seed))
    forwarder.run()


if __name__ == "__main__":
    main()
