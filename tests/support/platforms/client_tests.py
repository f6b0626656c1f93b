"""A plugin of pytest that runs the tests of the client where the trainer server is not, on any system:

    python -m pytest --noconftest -p tests.support.platforms.client_tests tests/art_langgraph tests/art_mcp

What needs the server, a package that `pip install .` does not bring, or POSIX is skipped, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import hypothesis
import pytest

hypothesis.settings.register_profile("project", deadline=None, derandomize=True)  # as tests/conftest.py does
hypothesis.settings.load_profile("project")

_NO_MODULE = re.compile(r"ModuleNotFoundError: (?:No module named '|import of )(\w+)")
_CLIENT = {"art_langgraph", "art_mcp", "trainer_server", "art_examples", "tests", "testbed"}
"""A module of these that is missing is a fault."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Skips a file that imports what is not installed here."""
    report: pytest.CollectReport = yield  # type: ignore[assignment]
    missing = _NO_MODULE.findall(str(report.longrepr)) if report.outcome == "failed" else []
    if missing and missing[-1] not in _CLIENT:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, f"Skipped: {missing[-1]} is not installed here")
    return report  # type: ignore[return-value]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests with fixtures of the server's."""
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
        if absent := [name for name in item.fixturenames if name not in definitions and name != "request"]:  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.skip(f"needs the trainer server: {', '.join(absent)}"))
