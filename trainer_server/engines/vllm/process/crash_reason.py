"""Why vLLM ended, out of its log: it runs in several processes, and the last error only says that another failed."""

from __future__ import annotations

import re

_ERROR = re.compile(r"^(?:\([^)]*\) )?(?:ERROR [^\]]*\] )?((?:\w+\.)*\w+(?:Error|Exception)): +(\S.*)$")
"""A traceback's last line, as `ValueError: …`, perhaps after the process's name and the log's time and place."""
_FOLLOWING = ("initialization failed", "root cause above", "EngineCore encountered an issue")
"""Words of errors that follow from another one."""


def cause(log: str) -> str | None:
    """The first error in a log that does not follow from another one; None if there is none.

    Args:
        log: The log since vLLM was started, or the end of it.
    """
    for line in log.splitlines():
        if (error := _ERROR.match(line)) and not any(words in line for words in _FOLLOWING):
            return f"{error[1]}: {error[2]}"
    return None
