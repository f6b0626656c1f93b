"""A package index on loopback, and the smallest of wheels for it."""

from __future__ import annotations

import re
import threading
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote


@dataclass(frozen=True)
class PackageIndex:
    """url: what pip takes as an index. projects: those that pip asked for, in order."""

    url: str
    projects: list[str] = field(default_factory=list)


@contextmanager
def package_index(wheels: Iterable[Path]) -> Iterator[PackageIndex]:
    """Serves wheels on loopback, in the form of https://peps.python.org/pep-0503/."""
    files = {wheel.name: wheel for wheel in wheels}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            folder, _, name = self.path.strip("/").partition("/")
            if folder == "files" and (path := files.get(unquote(name))):
                self._answer(path.read_bytes(), "application/octet-stream")
                return
            index.projects.append(name)
            names = [wheel for wheel in files if _project(wheel) == name]
            if not names:
                self.send_error(404)
                return
            links = [f'<a href="/files/{quote(wheel)}">{wheel}</a><br>' for wheel in names]
            self._answer(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode(), "text/html")

        def _answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index = PackageIndex(f"http://127.0.0.1:{server.server_port}/simple")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()


def small_wheel(folder: Path, name: str, version: str, *requirements: str) -> Path:
    """Writes a wheel for any Python with one empty module."""
    distribution = name.replace("-", "_")
    path, info = folder / f"{distribution}-{version}-py3-none-any.whl", f"{distribution}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{distribution}.py", "")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        members = (f"{distribution}.py", *(f"{info}/{file}" for file in ("METADATA", "WHEEL", "RECORD")))
        wheel.writestr(f"{info}/RECORD", "".join(f"{member},,\n" for member in members))
    return path


def _project(wheel: str) -> str:
    return re.sub(r"[-_.]+", "-", wheel.split("-")[0]).lower()
