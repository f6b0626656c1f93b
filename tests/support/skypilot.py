"""`sky launch --dryrun` by the real SkyPilot: its command line, its API server, its choice of a machine.

All of it runs in a home, a network and a process tree of its own. No cloud is reached, what SkyPilot would fetch is put
where it looks for it, and its API server, which it leaves running, ends with the process tree.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.environments import environment
from tests.support.deploy_files import ROOT
from trainer_server.engines.vllm.command import free_port

CLOUD = "mithril"
"""Its credentials are two variables that SkyPilot does not try out, and it can stop machines, as art.yaml describes."""

_CREDENTIALS = {"MITHRIL_API_KEY": "none", "MITHRIL_PROJECT": "none"}
_APART = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_SECONDS = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Machine:
    """A machine that a cloud has on offer, with one GPU.

    Attributes:
        price: Dollars per hour.
    """

    name: str
    accelerator: str
    price: float


@dataclass(frozen=True)
class DryRun:
    """What one `sky launch --dryrun` did.

    Attributes:
        code: The exit status of `sky`.
        said: Its output, without colours.
        task: The task that the API server got, as YAML: file, variables, secrets and options put together. Empty where
            the command line was refused.
        cluster: The file from which the cluster would be made. Empty where it came to none.
    """

    code: int
    said: str
    task: str
    cluster: Mapping[str, Any]

    @property
    def considered(self) -> list[str]:
        """The names of the machines that the task could run on, the cheapest first."""
        return re.findall(r"^ \S+ \(\S+\) +(\S+) ", self.said, re.M)

    @property
    def started(self) -> str:
        """The name of the machine that would be started."""
        return str(self.cluster["available_node_types"]["ray_head_default"]["node_config"]["InstanceType"])


def skypilot() -> Path:
    """The `bin` directory of an environment with SkyPilot."""
    return environment("skypilot", "skypilot==0.14.1", compiled=True)


def unavailable_reason() -> str | None:
    """Why this machine can make no dry runs; None: it can."""
    if missing := [program for program in ("unshare", "ip") if shutil.which(program, path=_PATH) is None]:
        return f"`{missing[0]}` is missing (Debian's util-linux and iproute2)"
    line = [*_APART, "ip", "link", "set", "lo", "up"]
    done = subprocess.run(line, env={"PATH": _PATH}, capture_output=True, text=True, timeout=60)
    return f"no process can have a network of its own: {done.stderr.strip()}" if done.returncode else None


def dry_runs(
    home: Path, machines: Sequence[Machine], lines: Mapping[str, tuple[Sequence[str], Mapping[str, str]]]
) -> dict[str, DryRun]:
    """Runs `sky launch --dryrun --yes -c CLUSTER` several times from the repository, with one API server.

    Args:
        home: An empty directory.
        machines: What the only cloud has on offer.
        lines: Of each run, by the name of its cluster: the words that follow, and environment variables besides
            SkyPilot's own.

    Raises:
        AssertionError: The runs came to no end; with the end of the server's log.
    """
    _furnish(home, machines)
    sky = skypilot() / "sky"
    script = ["ip link set lo up"]
    for name, (words, variables) in lines.items():
        given = [f"{variable}={value}" for variable, value in variables.items()]
        command = shlex.join(["env", *given, str(sky), "launch", "--dryrun", "--yes", "-c", name, *words])
        script.append(f'{command} > "$HOME/{name}.txt" 2>&1; echo $? > "$HOME/{name}.code"')
    try:
        subprocess.run([*_APART, "sh", "-c", "\n".join(script)], env=_variables(home), cwd=ROOT, check=True,
                       capture_output=True, text=True, timeout=_SECONDS)  # fmt: skip
    except subprocess.SubprocessError as error:
        raise AssertionError(f"{error}\n{_log(home)}") from error
    return {name: _dry_run(home, name) for name in lines}


def _furnish(home: Path, machines: Sequence[Machine]) -> None:
    """Writes what SkyPilot would fetch, and a stand-in for rsync: it asks whether that is there, and copies nothing."""
    catalogs = home / ".sky" / "catalogs" / "v8"
    head = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice"
    offers = [f"{machine.name},{machine.accelerator},1,16,128,{machine.price},here,," for machine in machines]
    known = [f"{machine.accelerator},\"['{CLOUD.title()}']\"" for machine in machines]
    for name, rows in {
        f"{CLOUD}/vms": [head, *offers],
        "common/accelerators": ["AcceleratorName,Clouds", *known],
    }.items():
        path = catalogs / f"{name}.csv"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(rows) + "\n")
    rsync = home / "bin" / "rsync"
    rsync.parent.mkdir()
    rsync.write_text('#!/bin/sh\n[ "$*" = --version ]\n')
    rsync.chmod(0o755)
    (home / "tmp").mkdir()


def _variables(home: Path) -> dict[str, str]:
    """None of the tests' own variables but PATH: SkyPilot is to see no account of whoever runs them."""
    return {
        "PATH": f"{home / 'bin'}:{_PATH}",
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "LANG": "C.UTF-8",
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        "SKYPILOT_API_SERVER_LOCAL_PORT": str(free_port()),
        # No worker processes that wait for more requests.
        "SKYPILOT_POD_MEMORY_GB_LIMIT": "1",
        # It builds a wheel of itself for the machine, here with the setuptools of its environment: pip takes the 0 for
        # "without isolation".
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_INDEX": "1",
        **_CREDENTIALS,
    }


def _dry_run(home: Path, name: str) -> DryRun:
    made = home / ".sky" / "generated" / f"{name}.yml.tmp"
    return DryRun(
        code=int((home / f"{name}.code").read_text()),
        said=_COLOUR.sub("", (home / f"{name}.txt").read_text()),
        task=_task(home, name),
        cluster=yaml.safe_load(made.read_text()) if made.exists() else {},
    )


def _task(home: Path, name: str) -> str:
    """As it stands in the pickled request that the API server keeps."""
    requests = home / ".sky" / "api_server" / "requests.db"
    if not requests.exists():
        return ""
    with closing(sqlite3.connect(requests)) as database:
        rows = database.execute("SELECT request_body FROM requests WHERE name = ? AND cluster_name = ?",
                                ("sky.launch", name)).fetchall()  # fmt: skip
    return base64.b64decode(rows[0][0]).decode(errors="replace") if rows else ""


def _log(home: Path) -> str:
    log = home / ".sky" / "api_server" / "server.log"
    return log.read_text()[-3000:] if log.exists() else "The API server did not start."
