"""A plugin of pytest that runs the tests of the client where the trainer server is not, on any system:

    python -m pytest --noconftest -p tests.support.platforms.client_tests tests/art_langgraph tests/art_mcp

What needs the server, a package that is not installed, or POSIX is skipped, with the reason.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_OURS = {"art_langgraph", "art_mcp", "trainer_server", "art_examples", "tests", "testbed"}
"""A module of these that is missing is a fault."""
LINUX_ONLY = "tests/trainer_server/common/test_guard.py"
_WORLDS, _MODES = "worlds cannot be copied on Windows", "Windows has no modes of files"
NOT_ON_WINDOWS = {
    "tests/art_langgraph/background/test_background.py::test_a_child_of_a_fork_begins_anew": "Windows has no fork",
    "tests/art_langgraph/llm/test_cache.py::test_what_was_put_is_found_and_only_the_user": _MODES,
    "tests/art_langgraph/store/test_sqlite.py::test_only_the_user_may_read_the_store": _MODES,
    "tests/art_langgraph/store/test_trajectory_store.py::test_a_kill_loses_nothing": "Windows has no SIGKILL",
    "tests/art_mcp/cli/test_specialize.py::test_the_commands_say_what_is_wrong": _WORLDS,
    "tests/art_mcp/client/copies/": _WORLDS,
    "tests/art_mcp/client/test_cassette.py::test_every_text_is_recorded_and_replayed": _MODES,
    "tests/art_mcp/client/test_in_world.py": _WORLDS,
    "tests/art_mcp/client/test_reset.py::test_a_command_that_": "its commands are those of a POSIX shell",
    "tests/art_mcp/scenarios/drafting/test_sql.py::test_another_query_with_the_same_values": _WORLDS,
    "tests/art_mcp/scenarios/test_worlds.py": _WORLDS,
    "tests/art_mcp/specialization/test_verify.py::test_a_run_that_called_nothing": _WORLDS,
    "tests/art_mcp/worlds/": _WORLDS,
    "tests/trainer_server/common/test_home.py::test_a_home_that_": _MODES,
    "tests/trainer_server/common/test_home.py::test_a_new_home_is_private": _MODES,
    "tests/trainer_server/common/test_home.py::test_a_directory_that_has_other_uses": _MODES,
    "tests/trainer_server/common/test_home.py::test_a_private_file_is_readable": _MODES,
    "tests/trainer_server/common/test_home.py::test_a_text_of_a_model_is_written": _MODES,
    "tests/trainer_server/common/test_home.py::test_the_server_of_connect_comes_before": _MODES,
    "tests/trainer_server/common/test_jsonl.py::test_only_the_user_may_read_a_new_file": _MODES,
}
NOT_ON_MACOS = {
    "tests/art_mcp/worlds/test_copying.py::test_where_blocks_cannot_be_shared": "files share blocks on Linux only",
}
EXCLUDED = {"win32": NOT_ON_WINDOWS, "darwin": NOT_ON_MACOS}
"""What the names of tests begin with, and why they cannot pass there; by `sys.platform`."""


def pytest_configure() -> None:
    """No test is timed, as in tests/conftest.py."""
    hypothesis.settings.register_profile("project", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("project")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if sys.platform != "linux" and collection_path.as_posix().endswith(LINUX_ONLY) else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    """Skips a file that imports what is not installed here."""
    report: pytest.CollectReport = yield  # type: ignore[assignment]
    missing = _NO_MODULE.findall(str(report.longrepr)) if report.outcome == "failed" else []
    if missing and missing[-1] not in _OURS:
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 1, f"Skipped: {missing[-1]} is not installed here")
    return report  # type: ignore[return-value]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests with fixtures of the server's, and what this system cannot."""
    for item in items:
        assert isinstance(item, pytest.Function)
        known = item._fixtureinfo.name2fixturedefs
        if absent := [name for name in item.fixturenames if name not in known and name != "request"]:
            item.add_marker(pytest.mark.skip(f"needs the trainer server: {', '.join(absent)}"))
        for begin, reason in EXCLUDED.get(sys.platform, {}).items():
            if item.nodeid.startswith(begin):
                item.add_marker(pytest.mark.skip(reason))
