"""A Chromium for tests of pages: the machine's own, or else a headless one from npm."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from testbed.npm import NpmUnavailable, node_programs, npm_package, unpack

PROGRAMS = ("chromium", "google-chrome", "chromium-browser")
PACKAGE = "@sparticuz/chromium@153.0.0"
"""Chromium's headless shell for x86-64, the libraries that a bare machine lacks, and a font: 70 MB. The package's own
files have the MIT licence, Chromium has BSD's."""
INFLATE = "process.stdin.pipe(require('zlib').createBrotliDecompress()).pipe(process.stdout)"
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>{where}/fonts</dir>
  <cachedir>{where}/fonts-cache</cachedir>
</fontconfig>
"""


class ChromiumUnavailable(Exception):
    """No Chromium starts here. The message says what was tried."""


@dataclass(frozen=True)
class Chromium:
    """A program, and what its environment needs beside the usual variables."""

    program: str
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **self.variables}

    def complaint(self) -> str:
        """Why it does not start; empty if it does."""
        try:
            done = subprocess.run([self.program, "--version"], env=self.env, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return f"exit status {done.returncode}: {done.stderr.strip()[-300:]}" if done.returncode else ""


def chromium() -> Chromium:
    """The first Chromium that starts.

    Raises:
        ChromiumUnavailable: None does.
    """
    tried = []
    for name in PROGRAMS:
        program = shutil.which(name)
        if program is None:
            tried.append(f"{name}: not installed")
            continue
        browser = Chromium(program)
        if not (complaint := browser.complaint()):
            return browser
        tried.append(f"{name}: {complaint}")
    try:
        browser = _from_npm()
        if not (complaint := browser.complaint()):
            return browser
        tried.append(f"{PACKAGE} of npm: {complaint}")
    except NpmUnavailable as error:
        tried.append(f"{PACKAGE} of npm: {error}")
    raise ChromiumUnavailable("no Chromium starts on this machine: " + "; ".join(tried))


def _from_npm() -> Chromium:
    where = npm_package(PACKAGE, _inflate) / "bin"
    return Chromium(
        str(where / "chromium"), {"LD_LIBRARY_PATH": str(where / "lib"), "FONTCONFIG_FILE": str(where / "fonts.conf")}
    )


def _inflate(package: Path) -> None:
    """Unpacks the files, which are compressed by brotli. Node.js can read that, Python cannot."""
    where, node = package / "bin", str(node_programs() / "node")
    for packed in where.glob("*.br"):
        with packed.open("rb") as source, packed.with_suffix("").open("wb") as target:
            subprocess.run([node, "-e", INFLATE], stdin=source, stdout=target, check=True, timeout=300)
        packed.unlink()
    for archive in where.glob("*.tar"):
        unpack(archive, where)
    (where / "chromium").chmod(0o755)
    (where / "fonts.conf").write_text(FONTS.format(where=where))
